// TLS connections: connect, handshake, one byte there and back, close, a few at a time. Full, or resumed by a ticket.
#include "load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int set;
static SSL_SESSION *ticket;

struct visit {
  struct client client;
  unsigned char byte;
  bool is_greeted;
};

static void want(struct visit *visit, int operation, uint32_t events) {
  struct epoll_event event = {.events = events, .data.ptr = visit};
  if (epoll_ctl(set, operation, visit->client.fd, &event)) failed("epoll_ctl: %s", strerror(errno));
}

/// The first client is not measured: it proves the path, and gets the ticket that the others resume with.
static void first_visit(int port, bool is_resumed) {
  unsigned char byte = 1;
  struct client client;
  client_open(&client, connect_to(port));
  client_write_all(&client, &byte, 1);
  client_read_all(&client, &byte, 1);
  if (is_resumed) {
    ticket = SSL_get1_session(client.ssl);
    if (!ticket || !SSL_SESSION_is_resumable(ticket)) failed("no ticket to resume with");
  }
  client_close(&client);
}

static void begin_one(int port) {
  static unsigned char next;
  struct visit *visit = calloc(1, sizeof *visit);
  int fd = connect_to(port);
  set_nonblocking(fd);
  client_start(&visit->client, fd, ticket);
  visit->byte = ++next;
  client_handshake(&visit->client);  // sends the first flight
  want(visit, EPOLL_CTL_ADD, EPOLLIN);
}

/// True when the connection is over. All that it sends fits into the socket, so it only waits to read.
static bool advance(struct visit *visit) {
  struct client *client = &visit->client;
  if (!visit->is_greeted) {
    if (!client_handshake(client)) return false;
    if (ticket && !SSL_session_reused(client->ssl)) failed("the ticket was not taken");
    visit->is_greeted = true;
    if (client_write(client, &visit->byte, 1) != 1) broken("write: %s", strerror(errno));
  }
  unsigned char byte;
  ssize_t length = client_read(client, &byte, 1);
  if (length < 0 && errno == EAGAIN) return false;
  if (length != 1) broken("a byte never came back");
  if (byte != visit->byte) broken("%02x came back as %02x", visit->byte, byte);
  client_close(client);
  free(visit);
  return true;
}

void handshakes(bool are_resumed, double seconds, int in_flight) {
  if (transport != TLS) failed("handshakes are TLS's");
  int port, endpoint = start_echo_server();
  hear_ports(endpoint, &port, 1);
  first_visit(port, are_resumed);
  say("ready");
  hear("go");

  set = epoll_create1(EPOLL_CLOEXEC);
  uint64_t begin = now_ns(), deadline = begin + (uint64_t)(seconds * 1e9), end = begin;
  long done = 0;
  int open = in_flight;
  for (int i = 0; i < in_flight; i++) begin_one(port);
  while (open) {
    struct epoll_event events[64];
    int count = epoll_wait(set, events, 64, PATIENCE_MS);
    if (count == 0) failed("%d connections without an answer for %d s", open, PATIENCE_MS / 1000);
    for (int i = 0; i < count; i++) {
      if (!advance(events[i].data.ptr)) continue;
      done++;
      end = now_ns();
      if (end < deadline)
        begin_one(port);
      else
        open--;
    }
  }
  say("result connections=%ld seconds=%.6f", done, (double)(end - begin) / 1e9);
}
