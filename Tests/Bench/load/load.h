// The load generator: the clients and the endpoints around a subject, in one process with at most two threads, so that
// both ends of a byte can be compared. Driven by bench.py over stdin and stdout (README.md, "How it works").
//
//   load [--transport plain|tls|ws:SIZE|wss:SIZE|telnet:IACS] …     SIZE: of the messages that clients send; IACS: 1 if the bytes
//                                                                   have 0xFF, one in 256, 0 if they have none
//   load bulk    tcp|pty CONNECTIONS up|down|both SECONDS
//   load rounds  tcp|pty SIZE SECONDS COUNT            ends at the first limit reached
//   load accepts SECONDS IN-FLIGHT
//   load handshakes full|resumed SECONDS IN-FLIGHT      with --transport tls
//   load idle    CLIENTS
//   load start   RUNS
//   load baud    SECONDS COUNT                         with --transport telnet: changes of the bit rate; ends like rounds
//
// Protocol: "endpoint tcp PORT" or "endpoint pty PATH…" -> "connect PORT…" or "connect direct" -> "ready" -> "go" ->
// "result key=value…" -> "done". In between the driver reads the kernel's counters of the subject. A wrong or missing
// byte ends the run with "broken …", any other error with "failed …".
#pragma once
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { CHUNK = 128 * 1024, PATIENCE_MS = 5000 };

enum kind { TCP, PTY };

/// The clients' transport.
enum transport { PLAIN, TLS, WS, WSS, TELNET };

struct client {
  int fd;
  SSL *ssl;
  struct frames *frames;  // WebSocket's
  struct telnet *telnet;
};

/// Both ends of one path through the subject.
struct pair {
  struct client client;
  int device;
};

// talk.c
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/// A byte was wrong or is missing: reports it and ends the process.
_Noreturn void broken(const char *format, ...) __attribute__((format(printf, 1, 2)));
/// The run was not possible (no connection, no descriptor): reports it and ends the process.
_Noreturn void failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
/// Waits for a line that starts with `word`. Returns the rest of it, without the line end.
char *hear(const char *word);
/// Nanoseconds of the monotonic clock.
uint64_t now_ns(void);

// pattern.c: what every byte must be, by its position in its stream. The period is a prime, so bytes lost, repeated or
// swapped between streams are detected; the count shows a loss of whole periods.
void pattern_prepare(void);
/// Replaces each 0xFF.
void pattern_without_iac(void);
/// The next `CHUNK` bytes of `stream` from `position`.
const unsigned char *pattern_at(uint32_t stream, uint64_t position);
/// Ends the process unless `bytes` are those of `stream` at `position`.
void pattern_check(uint32_t stream, uint64_t position, const unsigned char *bytes, size_t count);

// ends.c
enum kind kind_named(const char *name);
int listen_on_loopback(int *port);
int connect_to(int port);
void set_nonblocking(int fd);
/// Makes the endpoints, announces them, connects `count` clients on command, and proves each path with four bytes there
/// and back: afterwards the two ends of every pair are known to belong together.
void make_pairs(enum kind kind, int count, struct pair *pairs);
/// All of `count` bytes within `PATIENCE_MS`.
void write_all(int fd, const void *bytes, size_t count);
void read_all(int fd, void *bytes, size_t count);
/// A thread that accepts, sends back what it gets and closes when its peer does. Announces the endpoint and returns its
/// port.
int start_echo_server(void);
/// Reads the ports of "connect PORT…"; `endpoint` for "connect direct". Returns their number.
int hear_ports(int endpoint, int *ports, int limit);

// client.c
extern enum transport transport;
void transport_named(const char *words);
/// Makes a client of a connected socket and sends nothing: for handshakes that do not block.
void client_start(struct client *client, int fd, SSL_SESSION *resumed);
/// The same, with handshake and upgrade. Blocks.
void client_open(struct client *client, int fd);
/// Continues the TLS handshake; true when it is done.
bool client_handshake(struct client *client);
/// Like read(2) and write(2), for payload. Bytes taken for a frame may still wait to be sent: `client_is_sending`.
ssize_t client_read(struct client *client, void *bytes, size_t count);
ssize_t client_write(struct client *client, const void *bytes, size_t count);
bool client_is_sending(const struct client *client);
void client_send_rest(struct client *client);
void client_read_all(struct client *client, void *bytes, size_t count);
void client_write_all(struct client *client, const void *bytes, size_t count);
void client_close(struct client *client);
/// Asks for a bit rate by RFC 2217, and waits for the answer with the same one.
void client_set_baud(struct client *client, uint32_t bits_per_second);

// One file each.
void bulk(enum kind kind, int connections, const char *direction, double seconds);
void rounds(enum kind kind, size_t size, double seconds, long count);
void accepts(double seconds, int in_flight);
void handshakes(bool are_resumed, double seconds, int in_flight);
void idle(int clients);
void start(int runs);
void baud(double seconds, long count);
