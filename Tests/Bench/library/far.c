// The far end of library/run: a pty's master or a TCP listener that echoes, takes everything, or sends without end.
//   far pty|tcp echo|sink|source      prints the name to open, then serves one client
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

static int open_pty(void) {
  int master = posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || grantpt(master) || unlockpt(master)) exit(1);
  int slave = open(ptsname(master), O_RDWR | O_NOCTTY);  // stays open, so that the master never hangs up
  struct termios settings;
  tcgetattr(slave, &settings);
  cfmakeraw(&settings);
  tcsetattr(slave, TCSANOW, &settings);
  printf("%s\n", ptsname(master));
  return master;
}

static int open_tcp(void) {
  int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1)) exit(1);
  getsockname(listener, (struct sockaddr *)&address, &length);
  printf("127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);
  int client = accept(listener, NULL, NULL);
  setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return client;
}

int main(int argc, char **argv) {
  if (argc != 3) return 64;
  static char piece[64 * 1024];
  memset(piece, 0x55, sizeof piece);
  setvbuf(stdout, NULL, _IOLBF, 0);
  int far = strcmp(argv[1], "pty") ? open_tcp() : open_pty();
  int echoes = !strcmp(argv[2], "echo"), sends = !strcmp(argv[2], "source");
  while (1) {
    ssize_t count = sends ? (ssize_t)sizeof piece : read(far, piece, sizeof piece);
    if (count <= 0) return 0;
    for (ssize_t sent = 0; (echoes || sends) && sent < count;) {
      ssize_t taken = write(far, piece + sent, count - sent);
      if (taken <= 0) return 0;
      sent += taken;
    }
  }
}
