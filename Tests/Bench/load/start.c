// Start-up: fork and exec the subject, then connect until it listens, and send one byte there and back through it.
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t spawn(char **command) {
  pid_t child = fork();
  if (child < 0) failed("fork: %s", strerror(errno));
  if (child) return child;
  int null = open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; fd++) dup2(null, fd);
  execvp(command[0], command);
  _exit(127);
}

/// Stops the child: SIGTERM, and SIGKILL after two seconds.
static void stop(pid_t child) {
  kill(child, SIGTERM);
  for (int i = 0; i < 200; i++) {
    if (waitpid(child, NULL, WNOHANG) == child) return;
    usleep(10000);
  }
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
}

static int knock(int port, uint64_t deadline) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  while (now_ns() < deadline) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!connect(fd, (struct sockaddr *)&address, sizeof address)) return fd;
    close(fd);
    usleep(50);
  }
  return -1;
}

static int by_value(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

void start(int runs) {
  start_echo_server();
  // "spawn PORT<tab>word<tab>word…"
  char *words = strdup(hear("spawn")), *command[32] = {0};
  int port = atoi(strtok(words, "\t"));
  for (int i = 0; i < 31 && (command[i] = strtok(NULL, "\t")); i++) {}
  if (!command[0]) failed("nothing to start");
  double *listening = calloc((size_t)runs, sizeof(double)), *answering = calloc((size_t)runs, sizeof(double));
  for (int i = 0; i < runs; i++) {
    uint64_t begin = now_ns();
    pid_t child = spawn(command);
    int fd = knock(port, begin + PATIENCE_MS * 1000000ull);
    listening[i] = (double)(now_ns() - begin) / 1e6;
    if (fd < 0) {
      stop(child);
      failed("not listening after %d s", PATIENCE_MS / 1000);
    }
    char byte = 'x';
    write_all(fd, &byte, 1);
    read_all(fd, &byte, 1);
    answering[i] = (double)(now_ns() - begin) / 1e6;
    close(fd);
    stop(child);
  }
  qsort(listening, (size_t)runs, sizeof(double), by_value);
  qsort(answering, (size_t)runs, sizeof(double), by_value);
  say("result listening=%.2f answering=%.2f", listening[runs / 2], answering[runs / 2]);
}
