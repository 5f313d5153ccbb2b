// A client's end of a path: plain, or over TLS, WebSocket or both. Deliberately little of each: what is measured is the
// other side, and this side shares its cores.
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
  unsigned char *out;  // what is encoded and not sent yet
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
  const char *names[] = {"plain", "tls", "ws", "wss"};
  for (int i = 0; i < 4; i++)
    if (!strcmp(name, names[i])) {
      transport = (enum transport)i;
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

// The raw connection: as read(2) and write(2), also where TLS is in between.

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

/// Sends what is encoded; false while some is left.
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
    // Whole messages: what does not fill one is left for the next time, unless it is all there is.
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

/// Takes the headers out of what was read; the payload that is left.
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

// What the rest of the load sees.

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
}

void client_open(struct client *client, int fd) {
  client_start(client, fd, NULL);
  if (client->ssl && SSL_connect(client->ssl) != 1) failed("TLS: no handshake");
  if (client->frames) upgrade(client);
}

bool client_handshake(struct client *client) {
  return tls_answer(client, SSL_do_handshake(client->ssl), "the handshake") > 0;
}

ssize_t client_write(struct client *client, const void *bytes, size_t count) {
  return client->frames ? write_frames(client, bytes, count) : raw_write(client, bytes, count);
}

bool client_is_sending(const struct client *client) {
  return client->frames && client->frames->out_begin < client->frames->out_end;
}

void client_send_rest(struct client *client) {
  if (client->frames) flush(client);
}

ssize_t client_read(struct client *client, void *bytes, size_t count) {
  for (;;) {
    ssize_t moved = raw_read(client, bytes, count);
    if (moved <= 0 || !client->frames) return moved;
    size_t payload = decode(client->frames, bytes, (size_t)moved);
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
    if (!client->ssl) wait_for(client, POLLIN);  // what TLS holds already, poll does not see; main's alarm bounds it
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
  close(client->fd);
}
