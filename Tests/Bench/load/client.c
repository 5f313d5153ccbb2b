// A client's end of a path: plain, or over TLS, WebSocket or both, or telnet. Each is kept minimal: the other side is measured,
// and this side shares its cores.
#include "load.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_HEADER = 14 };  // of a masked frame, RFC 6455 section 5.2

enum transport transport = PLAIN;
static size_t message_size = 64 * 1024;

struct frames {
  unsigned char *out;  // encoded and not sent yet
  size_t out_begin, out_end;
  unsigned char header[MOST_HEADER];  // of the frame that is being read
  size_t header_length;
  uint64_t payload_left;
  bool is_control;
};

static bool is_tls(void) { return transport == TLS || transport == WSS; }
static bool is_framed(void) { return transport == WS || transport == WSS; }

void transport_named(const char *words) {
  char name[16];
  if (sscanf(words, "%15[^:]:%zu", name, &message_size) < 1) failed("no transport");
  const char *names[] = {"plain", "tls", "ws", "wss", "telnet"};
  for (int i = 0; i < 5; i++)
    if (!strcmp(name, names[i])) {
      transport = (enum transport)i;
      if (transport == TELNET && !message_size) pattern_without_iac();
      return;
    }
  failed("no transport '%s'", words);
}

// TLS: one cipher for all, so that no subject encrypts more than another.

static SSL_CTX *tls_context(void) {
  static SSL_CTX *context;
  if (context) return context;
  context = SSL_CTX_new(TLS_client_method());
  if (!context || !SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) ||
      !SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") || !SSL_CTX_set1_groups_list(context, "P-256"))
    failed("TLS can't be set up");
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  return context;
}

// The raw connection: like read(2) and write(2), also over TLS.

static ssize_t tls_answer(struct client *client, int answer, const char *what) {
  if (answer > 0) return answer;
  switch (SSL_get_error(client->ssl, answer)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: errno = EAGAIN; return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    default: failed("TLS: %s fails", what);
  }
}

static ssize_t raw_write(struct client *client, const void *bytes, size_t count) {
  return client->ssl ? tls_answer(client, SSL_write(client->ssl, bytes, (int)count), "writing")
                     : write(client->fd, bytes, count);
}

static ssize_t raw_read(struct client *client, void *bytes, size_t count) {
  return client->ssl ? tls_answer(client, SSL_read(client->ssl, bytes, (int)count), "reading")
                     : read(client->fd, bytes, count);
}

static void wait_for(struct client *client, short events) {
  struct pollfd poller = {.fd = client->fd, .events = events};
  if (poll(&poller, 1, PATIENCE_MS) <= 0) failed("no answer within %d s", PATIENCE_MS / 1000);
}

// WebSocket, RFC 6455.

static size_t encode(unsigned char *to, const unsigned char *payload, size_t count) {
  static uint32_t mask = 0x9e3779b9;
  unsigned char *at = to;
  *at++ = 0x82;  // a whole binary message
  if (count < 126) {
    *at++ = (unsigned char)(0x80 | count);
  } else if (count < 65536) {
    *at++ = 0x80 | 126;
    *at++ = (unsigned char)(count >> 8), *at++ = (unsigned char)count;
  } else {
    *at++ = 0x80 | 127;
    for (int shift = 56; shift >= 0; shift -= 8) *at++ = (unsigned char)((uint64_t)count >> shift);
  }
  mask = mask * 1664525 + 1013904223;
  memcpy(at, &mask, 4);
  at += 4;
  uint64_t wide = (uint64_t)mask << 32 | mask;
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t word;
    memcpy(&word, payload + i, 8);
    word ^= wide;
    memcpy(at + i, &word, 8);
  }
  for (; i < count; i++) at[i] = payload[i] ^ ((unsigned char *)&mask)[i % 4];
  return (size_t)(at - to) + count;
}

/// Sends the encoded bytes; false while some are left.
static bool flush(struct client *client) {
  struct frames *frames = client->frames;
  while (frames->out_begin < frames->out_end) {
    ssize_t moved = raw_write(client, frames->out + frames->out_begin, frames->out_end - frames->out_begin);
    if (moved < 0 && errno == EAGAIN) return false;
    if (moved <= 0) broken("write: %s", strerror(errno));
    frames->out_begin += (size_t)moved;
  }
  frames->out_begin = frames->out_end = 0;
  return true;
}

static ssize_t write_frames(struct client *client, const unsigned char *bytes, size_t count) {
  struct frames *frames = client->frames;
  if (!flush(client)) return errno = EAGAIN, -1;
  size_t taken = 0;
  while (taken < count) {
    size_t length = count - taken < message_size ? count - taken : message_size;
    // Whole messages: a rest smaller than a message waits for the next call, unless it is all there is.
    if (length < message_size && taken) break;
    frames->out_end += encode(frames->out + frames->out_end, bytes + taken, length);
    taken += length;
  }
  flush(client);
  return (ssize_t)taken;
}

/// The header's length as far as it is known, at least 2.
static size_t header_length(const unsigned char *header, size_t known) {
  if (known < 2) return 2;
  if (header[1] & 0x80) broken("a masked frame from a server");
  size_t length = header[1] & 0x7f;
  return length == 127 ? 10 : length == 126 ? 4 : 2;
}

static void begin_payload(struct frames *frames) {
  const unsigned char *header = frames->header;
  frames->is_control = header[0] & 0x08;
  if ((header[0] & 0x0f) == 8) broken("the server closes");
  frames->payload_left = header[1] & 0x7f;
  if (frames->header_length > 2) {
    frames->payload_left = 0;
    for (size_t i = 2; i < frames->header_length; i++) frames->payload_left = frames->payload_left << 8 | header[i];
  }
  frames->header_length = 0;
}

/// Removes the headers from the bytes read; returns the length of the payload left.
static size_t decode(struct frames *frames, unsigned char *bytes, size_t count) {
  size_t from = 0, to = 0;
  while (from < count) {
    if (frames->payload_left) {
      size_t run = count - from < frames->payload_left ? count - from : frames->payload_left;
      if (!frames->is_control) {
        if (to != from) memmove(bytes + to, bytes + from, run);
        to += run;
      }
      from += run, frames->payload_left -= run;
      continue;
    }
    frames->header[frames->header_length++] = bytes[from++];
    if (frames->header_length >= 2 && frames->header_length == header_length(frames->header, frames->header_length))
      begin_payload(frames);
  }
  return to;
}

static void upgrade(struct client *client) {
  static const char request[] =
    "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
  if (raw_write(client, request, sizeof request - 1) != sizeof request - 1) failed("the request can't be sent");
  char answer[4096];
  size_t length = 0;
  while (length < 4 || memcmp(answer + length - 4, "\r\n\r\n", 4)) {
    if (length == sizeof answer - 1) failed("the answer has no end");
    if (raw_read(client, answer + length, 1) != 1) failed("no answer to the upgrade");
    length++;
  }
  answer[length] = 0;
  if (!strstr(answer, " 101 ")) failed("no upgrade: %.60s", answer);
}

// Telnet, RFC 854, with BINARY (856), and COM-PORT-OPTION (2217) for the bit rate.

enum { IAC = 255, DONT = 254, DO = 253, WONT = 252, WILL = 251, SB = 250, SE = 240, BINARY = 0, SUPPRESS_GO_AHEAD = 3, COM_PORT = 44 };

struct telnet {
  unsigned char out[2 * CHUNK];  // encoded and not sent yet
  size_t out_begin, out_end;
  enum { DATA, COMMAND, OPTION, PARAMETERS, PARAMETERS_COMMAND } state;
  unsigned char command, parameters[64];
  size_t length;
  bool sends_binary, receives_binary;
  uint32_t baud;  // of the last answer
};

static bool flush_telnet(struct client *client) {
  struct telnet *telnet = client->telnet;
  while (telnet->out_begin < telnet->out_end) {
    ssize_t moved = raw_write(client, telnet->out + telnet->out_begin, telnet->out_end - telnet->out_begin);
    if (moved < 0 && errno == EAGAIN) return false;
    if (moved <= 0) broken("write: %s", strerror(errno));
    telnet->out_begin += (size_t)moved;
  }
  telnet->out_begin = telnet->out_end = 0;
  return true;
}

static ssize_t write_telnet(struct client *client, const unsigned char *bytes, size_t count) {
  struct telnet *telnet = client->telnet;
  if (!flush_telnet(client)) return errno = EAGAIN, -1;
  if (!memchr(bytes, IAC, count)) return raw_write(client, bytes, count);
  for (size_t from = 0; from < count;) {
    const unsigned char *iac = memchr(bytes + from, IAC, count - from);
    size_t run = iac ? (size_t)(iac - bytes) + 1 - from : count - from;
    memcpy(telnet->out + telnet->out_end, bytes + from, run);
    telnet->out_end += run, from += run;
    if (iac) telnet->out[telnet->out_end++] = IAC;
  }
  flush_telnet(client);
  return (ssize_t)count;
}

static void send_command(struct client *client, unsigned char command, unsigned char option) {
  unsigned char bytes[] = {IAC, command, option};
  if (raw_write(client, bytes, sizeof bytes) != sizeof bytes) failed("a telnet command can't be sent");
}

static void negotiate(struct client *client, unsigned char option) {
  struct telnet *telnet = client->telnet;
  bool asked = option == BINARY || option == SUPPRESS_GO_AHEAD || option == COM_PORT;
  if (telnet->command == DO && option == BINARY) telnet->sends_binary = true;
  if (telnet->command == WILL && option == BINARY) telnet->receives_binary = true;
  if ((telnet->command == DO || telnet->command == WILL) && !asked)
    send_command(client, telnet->command == DO ? WONT : DONT, option);
}

static void end_parameters(struct telnet *telnet) {
  const unsigned char *bytes = telnet->parameters;
  if (telnet->length == 6 && bytes[0] == COM_PORT && bytes[1] == 101)
    telnet->baud = (uint32_t)bytes[2] << 24 | (uint32_t)bytes[3] << 16 | (uint32_t)bytes[4] << 8 | bytes[5];
}

static void add_parameter(struct telnet *telnet, unsigned char byte) {
  if (telnet->length < sizeof telnet->parameters) telnet->parameters[telnet->length++] = byte;
}

/// Removes commands from the bytes read; returns the length of the data left.
static size_t decode_telnet(struct client *client, unsigned char *bytes, size_t count) {
  struct telnet *telnet = client->telnet;
  size_t from = 0, to = 0;
  while (from < count) {
    if (telnet->state == DATA) {
      unsigned char *iac = memchr(bytes + from, IAC, count - from);
      size_t run = iac ? (size_t)(iac - bytes) - from : count - from;
      if (to != from) memmove(bytes + to, bytes + from, run);
      to += run, from += run;
      if (iac) telnet->state = COMMAND, from++;
      continue;
    }
    unsigned char byte = bytes[from++];
    switch (telnet->state) {
      case DATA: break;
      case COMMAND:
        telnet->command = byte, telnet->state = DATA;
        if (byte == IAC) bytes[to++] = IAC;
        else if (byte == SB) telnet->state = PARAMETERS, telnet->length = 0;
        else if (byte >= WILL) telnet->state = OPTION;
        break;
      case OPTION:
        negotiate(client, byte);
        telnet->state = DATA;
        break;
      case PARAMETERS:
        if (byte == IAC) telnet->state = PARAMETERS_COMMAND;
        else add_parameter(telnet, byte);
        break;
      case PARAMETERS_COMMAND:
        telnet->state = byte == SE ? DATA : PARAMETERS;
        if (byte == SE) end_parameters(telnet);
        else if (byte == IAC) add_parameter(telnet, byte);
        break;
    }
  }
  return to;
}

/// Reads what the server sends outside of its data, until `done`.
static void read_commands(struct client *client, bool (*done)(const struct telnet *, uint32_t), uint32_t value) {
  while (!done(client->telnet, value)) {
    unsigned char bytes[512];
    wait_for(client, POLLIN);
    ssize_t moved = raw_read(client, bytes, sizeof bytes);
    if (moved <= 0) failed("no answer to a telnet command");
    if (decode_telnet(client, bytes, (size_t)moved)) failed("data before the client's own");
  }
}

static bool is_binary(const struct telnet *telnet, uint32_t value) {
  (void)value;
  return telnet->sends_binary && telnet->receives_binary;
}

static bool has_baud(const struct telnet *telnet, uint32_t value) { return telnet->baud == value; }

static void open_telnet(struct client *client) {
  static const unsigned char options[] = {BINARY, SUPPRESS_GO_AHEAD, COM_PORT};
  for (size_t i = 0; i < sizeof options; i++) send_command(client, WILL, options[i]), send_command(client, DO, options[i]);
  read_commands(client, is_binary, 0);
}

void client_set_baud(struct client *client, uint32_t baud) {
  if (!client->telnet) failed("only telnet has a bit rate");
  unsigned char bytes[] = {IAC, SB, COM_PORT, 1, (unsigned char)(baud >> 24), (unsigned char)(baud >> 16),
                           (unsigned char)(baud >> 8), (unsigned char)baud, IAC, SE};  // none of the rates used has 0xFF
  client->telnet->baud = 0;
  if (raw_write(client, bytes, sizeof bytes) != sizeof bytes) failed("a change of the bit rate can't be sent");
  read_commands(client, has_baud, baud);
}

// The interface for the rest of the load generator.

void client_start(struct client *client, int fd, SSL_SESSION *resumed) {
  *client = (struct client){.fd = fd};
  if (is_tls()) {
    client->ssl = SSL_new(tls_context());
    if (!client->ssl || !SSL_set_fd(client->ssl, fd)) failed("no memory");
    if (resumed) SSL_set_session(client->ssl, resumed);
    SSL_set_connect_state(client->ssl);
  }
  if (is_framed()) {
    client->frames = calloc(1, sizeof *client->frames);
    // Every message with its header, and one more.
    size_t room = CHUNK + MOST_HEADER * (CHUNK / message_size + 2) + message_size;
    client->frames->out = malloc(room);
  }
  if (transport == TELNET) client->telnet = calloc(1, sizeof *client->telnet);
}

void client_open(struct client *client, int fd) {
  client_start(client, fd, NULL);
  if (client->ssl && SSL_connect(client->ssl) != 1) failed("TLS: no handshake");
  if (client->frames) upgrade(client);
  if (client->telnet) open_telnet(client);
}

bool client_handshake(struct client *client) {
  return tls_answer(client, SSL_do_handshake(client->ssl), "the handshake") > 0;
}

ssize_t client_write(struct client *client, const void *bytes, size_t count) {
  if (client->telnet) return write_telnet(client, bytes, count);
  return client->frames ? write_frames(client, bytes, count) : raw_write(client, bytes, count);
}

bool client_is_sending(const struct client *client) {
  if (client->telnet) return client->telnet->out_begin < client->telnet->out_end;
  return client->frames && client->frames->out_begin < client->frames->out_end;
}

void client_send_rest(struct client *client) {
  if (client->frames) flush(client);
  if (client->telnet) flush_telnet(client);
}

ssize_t client_read(struct client *client, void *bytes, size_t count) {
  for (;;) {
    ssize_t moved = raw_read(client, bytes, count);
    if (moved <= 0 || !(client->frames || client->telnet)) return moved;
    size_t payload = client->telnet ? decode_telnet(client, bytes, (size_t)moved) : decode(client->frames, bytes, (size_t)moved);
    if (payload) return (ssize_t)payload;
  }
}

void client_write_all(struct client *client, const void *bytes, size_t count) {
  for (size_t done = 0; done < count;) {
    wait_for(client, POLLOUT);
    ssize_t moved = client_write(client, (const char *)bytes + done, count - done);
    if (moved <= 0) failed("write: %s", strerror(errno));
    done += (size_t)moved;
  }
  while (client_is_sending(client)) client_send_rest(client);
}

void client_read_all(struct client *client, void *bytes, size_t count) {
  for (size_t done = 0; done < count;) {
    if (!client->ssl) wait_for(client, POLLIN);  // poll does not see what TLS holds; main's alarm bounds it
    ssize_t moved = client_read(client, (char *)bytes + done, count - done);
    if (moved <= 0) failed("read: %s", moved ? strerror(errno) : "end of stream");
    done += (size_t)moved;
  }
}

void client_close(struct client *client) {
  if (client->ssl) {
    SSL_shutdown(client->ssl);
    SSL_free(client->ssl);
  }
  if (client->frames) {
    free(client->frames->out);
    free(client->frames);
  }
  free(client->telnet);
  close(client->fd);
}
