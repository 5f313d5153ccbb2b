// PID 1 of the emulated machine after its start: runs shell commands for the host, one per TCP connection, any number
// at a time.
//
//   host → guest   "LENGTH\n", a command of that many bytes; then each byte is the number of a signal for it
//   guest → host   "O LENGTH\n" or "E LENGTH\n" and that many bytes of its output or errors; at last "X STATUS\n"
//
// When the host hangs up, the command's process group is killed; processes that left the group (setsid) stay.

#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PORT = 7, MOST = 1 << 20 };

static int put(int host, const char *bytes, size_t count) {
  while (count > 0) {
    ssize_t taken = send(host, bytes, count, MSG_NOSIGNAL);
    if (taken < 0) return -1;
    bytes += taken;
    count -= (size_t)taken;
  }
  return 0;
}

static int frame(int host, char kind, const char *bytes, size_t count) {
  char head[32];
  int length = snprintf(head, sizeof head, "%c %zu\n", kind, count);
  return put(host, head, (size_t)length) || put(host, bytes, count);
}

// The command, or NULL if the host sends something invalid.
static char *hear(int host) {
  char digits[16] = "";
  for (size_t at = 0; at < sizeof digits - 1 && read(host, digits + at, 1) == 1; at++)
    if (digits[at] == '\n') break;
  long length = strtol(digits, NULL, 10);
  if (length <= 0 || length > MOST) return NULL;
  char *command = calloc(1, (size_t)length + 1);
  for (ssize_t got = 0, more; command && got < length; got += more)
    if ((more = read(host, command + got, (size_t)(length - got))) <= 0) return NULL;
  return command;
}

static pid_t start(const char *command, int out, int err) {
  pid_t child = fork();
  if (child != 0) return child;
  setsid();
  int nothing = 0;
  if (!freopen("/dev/null", "r", stdin)) nothing = 1;
  dup2(out, 1);
  dup2(err, 2);
  if (!nothing) execl("/bin/sh", "sh", "-c", command, (char *)NULL);
  _exit(127);
}

// Forwards the command's output until it has ended and its pipes are empty. Its children may keep the pipes open; they
// are not waited for.
static void serve(int host) {
  int out[2], err[2], status = 0, ended = 0;
  char *command = hear(host), bytes[16384];
  if (!command || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) return;
  pid_t child = start(command, out[1], err[1]);
  close(out[1]);
  close(err[1]);
  struct pollfd waits[] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}, {host, POLLIN, 0}};
  for (;;) {
    int count = poll(waits, 3, ended ? 0 : 20);
    if (count > 0 && waits[2].revents) {
      unsigned char number;
      if (read(host, &number, 1) <= 0) {
        kill(-child, SIGKILL);
        return;
      }
      kill(-child, number);
    }
    for (int i = 0; count > 0 && i < 2; i++) {
      if (!waits[i].revents) continue;
      ssize_t got = read(waits[i].fd, bytes, sizeof bytes);
      if (got <= 0) waits[i].fd = -1;
      else if (frame(host, i ? 'E' : 'O', bytes, (size_t)got)) kill(-child, SIGKILL);
    }
    if (ended && count <= 0) break;
    if (!ended && waitpid(child, &status, WNOHANG) == child) ended = 1;
  }
  int length = snprintf(bytes, sizeof bytes, "X %d\n", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  put(host, bytes, (size_t)length);
}

int main(void) {
  setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/guest", 1);
  setenv("HOME", "/root", 1);
  setenv("LANG", "C.UTF-8", 1);
  int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(door, (struct sockaddr *)&address, sizeof address) || listen(door, 16)) perror("agent");
  for (;;) {
    struct pollfd wait = {door, POLLIN, 0};
    poll(&wait, 1, 1000);
    while (waitpid(-1, NULL, WNOHANG) > 0) {  // orphans too
    }
    if (!(wait.revents & POLLIN)) continue;
    int host = accept4(door, NULL, NULL, SOCK_CLOEXEC);
    if (host >= 0 && fork() == 0) {
      serve(host);
      _exit(0);
    }
    if (host >= 0) close(host);
  }
}
