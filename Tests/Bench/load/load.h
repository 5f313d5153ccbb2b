// The load generator: the clients and the endpoints around a subject, in one process with two threads at most,
// so that a byte's two ends can be compared. Driven by bench.py over stdin and stdout (README.md, "How it works").
//
//   load [--transport plain|tls|ws:SIZE|wss:SIZE] …     SIZE: of the messages that clients send
//   load bulk    tcp|pty CONNECTIONS up|down|both SECONDS
//   load rounds  tcp|pty SIZE SECONDS COUNT            ends at whichever comes first
//   load accepts SECONDS IN-FLIGHT
//   load handshakes full|resumed SECONDS IN-FLIGHT      with --transport tls
//   load idle    CLIENTS
//   load start   RUNS
//
// Talk: "endpoint tcp PORT" or "endpoint pty PATH…" -> "connect PORT…" or "connect direct" -> "ready" -> "go" ->
// "result key=value…" -> "done". In between the caller reads what the kernel has counted for the subject. A byte
// that is wrong or missing ends it with "broken …", anything else that goes wrong with "failed …".
#pragma once
#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { CHUNK = 128 * 1024, PATIENCE_MS = 5000 };

enum kind { TCP, PTY };

/// How clients come in.
enum transport { PLAIN, TLS, WS, WSS };

struct client {
  int fd;
  SSL *ssl;
  struct frames *frames;  // WebSocket's
};

/// Both ends of one path through the subject.
struct pair {
  struct client client;
  int device;
};

// talk.c
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/// A byte was wrong or is missing: says so and ends the process.
_Noreturn void broken(const char *format, ...) __attribute__((format(printf, 1, 2)));
/// The run could not be made (no connection, no descriptor): says so and ends the process.
_Noreturn void failed(const char *format, ...) __attribute__((format(printf, 1, 2)));
/// Waits for a line that starts with `word`; what follows it, without the line's end.
char *hear(const char *word);
/// Nanoseconds of the monotonic clock.
uint64_t now_ns(void);

// pattern.c: what every byte must be, by its position in its stream. The period is a prime, so bytes lost, repeated
// or swapped between streams show up; a loss of whole periods shows in the count.
void pattern_prepare(void);
/// The next `CHUNK` bytes of `stream` from `position`.
const unsigned char *pattern_at(uint32_t stream, uint64_t position);
/// Ends the process when `bytes` are not those of `stream` at `position`.
void pattern_check(uint32_t stream, uint64_t position, const unsigned char *bytes, size_t count);

// ends.c
enum kind kind_named(const char *name);
int listen_on_loopback(int *port);
int connect_to(int port);
void set_nonblocking(int fd);
/// Makes the endpoints, announces them, connects `count` clients when told to, and proves each path with four bytes
/// there and back: after it every pair's two ends are known to belong together.
void make_pairs(enum kind kind, int count, struct pair *pairs);
/// All of `count` bytes within `PATIENCE_MS`.
void write_all(int fd, const void *bytes, size_t count);
void read_all(int fd, void *bytes, size_t count);
/// A thread that accepts, sends back what it gets and closes when its peer does. Announces the endpoint; its port.
int start_echo_server(void);
/// The ports of "connect PORT…"; `endpoint` for "connect direct". The count.
int hear_ports(int endpoint, int *ports, int limit);

// client.c
extern enum transport transport;
void transport_named(const char *words);
/// Makes a client of a connected socket, without a byte sent: for handshakes that do not block.
void client_start(struct client *client, int fd, SSL_SESSION *resumed);
/// The same, greeted: handshake and upgrade are done. Blocks.
void client_open(struct client *client, int fd);
/// Goes on with the TLS handshake; true when it is done.
bool client_handshake(struct client *client);
/// As read(2) and write(2), of payload. What was taken for a frame may wait for its way: `client_is_sending`.
ssize_t client_read(struct client *client, void *bytes, size_t count);
ssize_t client_write(struct client *client, const void *bytes, size_t count);
bool client_is_sending(const struct client *client);
void client_send_rest(struct client *client);
void client_read_all(struct client *client, void *bytes, size_t count);
void client_write_all(struct client *client, const void *bytes, size_t count);
void client_close(struct client *client);

// One file each.
void bulk(enum kind kind, int connections, const char *direction, double seconds);
void rounds(enum kind kind, size_t size, double seconds, long count);
void accepts(double seconds, int in_flight);
void handshakes(bool are_resumed, double seconds, int in_flight);
void idle(int clients);
void start(int runs);
