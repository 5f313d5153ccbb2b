/* A crowd of clients that measures silence: connects COUNT clients to HOST:PORT, reads everything they receive, and
   records for each the longest time between two arrivals. Prints "ready" when all are connected, starts measuring at the
   first line on standard input and stops at its end. Then it prints: the longest gap in ms, its client, the least and the
   most bytes that a client received, and how many clients were disconnected. For test_crowd.py. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
  if (argc != 4) return 64;
  int count = atoi(argv[3]), poller = epoll_create1(0), measuring = 0, lost = 0;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
  inet_pton(AF_INET, argv[1], &to.sin_addr);
  int *fds = calloc(count, sizeof *fds);
  double *last = calloc(count, sizeof *last), *longest = calloc(count, sizeof *longest);
  long long *bytes = calloc(count, sizeof *bytes);
  for (int i = 0; i < count; i++) {
    fds[i] = socket(AF_INET, SOCK_STREAM, 0);
    if (fds[i] < 0 || connect(fds[i], (struct sockaddr *)&to, sizeof to) < 0) {
      perror("connect");
      return 1;
    }
    struct epoll_event want = {.events = EPOLLIN, .data.u32 = i};
    epoll_ctl(poller, EPOLL_CTL_ADD, fds[i], &want);
  }
  struct epoll_event want = {.events = EPOLLIN, .data.u32 = count}, ready[256];
  epoll_ctl(poller, EPOLL_CTL_ADD, 0, &want);
  puts("ready");
  fflush(stdout);

  static char buffer[1 << 16];
  for (int ended = 0; !ended;) {
    int n = epoll_wait(poller, ready, 256, -1);
    for (int k = 0; k < n; k++) {
      int i = ready[k].data.u32;
      if (i == count) {
        if (read(0, buffer, sizeof buffer) <= 0) {
          ended = 1;
        } else if (!measuring) {
          measuring = 1;
          for (int j = 0; j < count; j++) last[j] = now(), bytes[j] = 0;
        }
        continue;
      }
      ssize_t got = recv(fds[i], buffer, sizeof buffer, MSG_DONTWAIT);
      if (got < 0 && errno == EAGAIN) continue;
      if (got <= 0) {
        lost++;
        epoll_ctl(poller, EPOLL_CTL_DEL, fds[i], NULL);
        continue;
      }
      double time = now();
      bytes[i] += got;
      if (measuring && time - last[i] > longest[i]) longest[i] = time - last[i];
      last[i] = time;
    }
  }
  int worst = 0;
  long long least = bytes[0], most = bytes[0];
  for (int i = 0; i < count; i++) {
    // Silence that lasts to the end counts too.
    if (measuring && now() - last[i] > longest[i]) longest[i] = now() - last[i];
    if (longest[i] > longest[worst]) worst = i;
    if (bytes[i] < least) least = bytes[i];
    if (bytes[i] > most) most = bytes[i];
  }
  printf("%.1f %d %lld %lld %d\n", longest[worst], worst, least, most, lost);
  return 0;
}
