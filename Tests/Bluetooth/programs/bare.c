// The least code that carries bytes between a TCP client and a Bluetooth socket: the reference for the gateway's speed.
//   bare PORT rfcomm ADDRESS CHANNEL
//   bare PORT channel ADDRESS PSM     an LE channel
//   bare PORT gatt ADDRESS            Nordic's serial service, write commands and notifications
// One client at a time; the radio link is opened when it connects, and closed when either side ends. LE addresses are
// random ones. Buffers are as large as the gateway's; no encryption, no timeouts, no checks of the device's messages.
#include <arpa/inet.h>
#include <bluetooth/bluetooth.h>
#include <bluetooth/l2cap.h>
#include <bluetooth/rfcomm.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROOM = 64 << 10, ATT = 4, LONGEST = 517 };

static void need(int answer, const char *what) {
  if (answer >= 0) return;
  perror(what);
  exit(1);
}

static bdaddr_t address_of(const char *text) {
  unsigned byte[6];
  bdaddr_t address;
  if (sscanf(text, "%x:%x:%x:%x:%x:%x", byte, byte + 1, byte + 2, byte + 3, byte + 4, byte + 5) != 6) exit(64);
  for (int i = 0; i < 6; i++) address.b[i] = (uint8_t)byte[5 - i];
  return address;
}

// A link closed a moment ago is still busy.
static int dialled(int fd, const void *place, socklen_t size) {
  if (connect(fd, place, size) == 0) return fd;
  if (errno != EBUSY) need(-1, "connect");
  close(fd);
  return -1;
}

static int reach(const char *kind, bdaddr_t device, int number) {
  int fd, large = 1 << 20;
  if (strcmp(kind, "rfcomm") == 0) {
    struct sockaddr_rc place = {.rc_family = AF_BLUETOOTH, .rc_bdaddr = device, .rc_channel = (uint8_t)number};
    need(fd = socket(AF_BLUETOOTH, SOCK_STREAM, BTPROTO_RFCOMM), "socket");
    return dialled(fd, &place, sizeof place);
  }
  int is_gatt = strcmp(kind, "gatt") == 0;
  struct sockaddr_l2 place = {.l2_family = AF_BLUETOOTH, .l2_bdaddr_type = BDADDR_LE_PUBLIC};
  if (is_gatt) place.l2_cid = htobs(ATT);
  need(fd = socket(AF_BLUETOOTH, is_gatt ? SOCK_SEQPACKET : SOCK_STREAM, BTPROTO_L2CAP), "socket");
  need(bind(fd, (struct sockaddr *)&place, sizeof place), "bind");
  uint16_t most = 2048;
  if (is_gatt) {
    need(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &large, sizeof large), "SO_RCVBUF");
  } else {
    need(setsockopt(fd, SOL_BLUETOOTH, BT_RCVMTU, &most, sizeof most), "BT_RCVMTU");
    place.l2_psm = htobs((uint16_t)number);
  }
  place.l2_bdaddr = device;
  place.l2_bdaddr_type = BDADDR_LE_RANDOM;
  return dialled(fd, &place, sizeof place);
}

// Sends a request and reads its answer, which begins with the byte `answer[0]`.
static ssize_t ask(int fd, const uint8_t *question, size_t size, uint8_t *answer) {
  need((int)write(fd, question, size), "write");
  for (;;) {
    // In Linux 6.1 a blocking read holds the socket's lock, which the kernel needs to receive anything on the whole
    // adapter.
    struct pollfd news = {fd, POLLIN, 0};
    need(poll(&news, 1, -1), "poll");
    ssize_t count = read(fd, answer, LONGEST);
    if (count <= 0) exit(69);
    if (answer[0] == question[0] + 1 || answer[0] == 1) return count;
  }
}

// Finds the handles of Nordic's service for notifications and writes; returns the longest value.
static size_t look_up(int fd, uint8_t *told, uint8_t *written) {
  uint8_t answer[LONGEST], mtu[] = {0x02, LONGEST & 0xff, LONGEST >> 8};
  uint8_t list[] = {0x08, 1, 0, 0xff, 0xff, 0x03, 0x28};
  ask(fd, mtu, sizeof mtu, answer);
  size_t agreed = (size_t)(answer[1] | answer[2] << 8);
  for (;;) {
    ssize_t count = ask(fd, list, sizeof list, answer);
    if (answer[0] == 1) break;
    for (uint8_t *item = answer + 2; item + answer[1] <= answer + count; item += answer[1]) {
      list[1] = (uint8_t)(item[0] + 1);  // few attributes: handles of one byte
      if (answer[1] != 21) continue;
      if (item[17] == 3) memcpy(told, item + 3, 2);
      if (item[17] == 2) memcpy(written, item + 3, 2);
    }
  }
  uint8_t turn_on[] = {0x12, (uint8_t)(told[0] + 1), told[1], 1, 0};
  ask(fd, turn_on, sizeof turn_on, answer);
  return agreed < 515 ? agreed - 3 : 512;
}

struct way {
  uint8_t bytes[ROOM];
  size_t from, to;
};

// Writes the bytes to the socket in pieces of at most `unit`, each preceded by `head`; 0 if the connection broke.
static int give(int fd, struct way *way, size_t unit, const uint8_t *head, size_t head_size) {
  uint8_t message[LONGEST];
  while (way->from < way->to) {
    size_t size = way->to - way->from < unit ? way->to - way->from : unit;
    const uint8_t *start = way->bytes + way->from;
    if (head_size) {
      memcpy(message, head, head_size);
      memcpy(message + head_size, start, size);
      start = message;
    }
    ssize_t count = send(fd, start, head_size + size, MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN;
    way->from += (size_t)count - head_size;
  }
  way->from = way->to = 0;
  return 1;
}

static void carry(int tcp, int radio, size_t unit, const uint8_t *told, const uint8_t *head, size_t head_size) {
  static struct way up, down;
  up.from = up.to = down.from = down.to = 0;
  for (;;) {
    struct pollfd both[2] = {{tcp, up.to ? 0 : POLLIN, 0}, {radio, down.to ? 0 : POLLIN, 0}};
    if (up.to) both[1].events |= POLLOUT;
    if (down.to) both[0].events |= POLLOUT;
    need(poll(both, 2, -1), "poll");
    if (!up.to && both[0].revents) {
      ssize_t count = read(tcp, up.bytes, ROOM);
      if (count <= 0) return;
      up.to = (size_t)count;
    }
    if (!down.to && both[1].revents & (POLLIN | POLLHUP | POLLERR)) {
      ssize_t count = read(radio, down.bytes, ROOM);
      if (count <= 0 && errno != EAGAIN) return;
      if (count > 0) down.to = (size_t)count;
      if (count > 0 && head_size) {
        if (down.bytes[0] != 0x1b || memcmp(down.bytes + 1, told, 2) != 0) down.to = 0;
        else down.from = 3;
      }
    }
    if (up.to && !give(radio, &up, unit, head, head_size)) return;
    if (down.to && !give(tcp, &down, ROOM, NULL, 0)) return;
  }
}

int main(int count, char **words) {
  if (count < 4) return 64;
  struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[1]))};
  int door, on = 1;
  need(door = socket(AF_INET, SOCK_STREAM, 0), "socket");
  setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  need(bind(door, (struct sockaddr *)&place, sizeof place), "bind");
  need(listen(door, 5), "listen");
  puts("listening");
  fflush(stdout);
  for (;;) {
    int tcp = accept(door, NULL, NULL);
    need(tcp, "accept");
    setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int radio, tries = 0;
    while ((radio = reach(words[2], address_of(words[3]), count > 4 ? atoi(words[4]) : 0)) < 0 && tries++ < 100) usleep(100000);
    need(radio, "connect");
    uint8_t told[2] = {0}, head[3] = {0x52};
    size_t unit = ROOM, head_size = 0;
    uint16_t most = 0;
    socklen_t size = sizeof most;
    if (strcmp(words[2], "gatt") == 0) {
      unit = look_up(radio, told, head + 1);
      head_size = sizeof head;
    } else if (strcmp(words[2], "channel") == 0 &&
               getsockopt(radio, SOL_BLUETOOTH, BT_SNDMTU, &most, &size) == 0) {
      unit = most;
    }
    fcntl(tcp, F_SETFL, O_NONBLOCK);
    fcntl(radio, F_SETFL, O_NONBLOCK);
    puts("open");
    fflush(stdout);
    carry(tcp, radio, unit, told, head, head_size);
    close(radio);
    close(tcp);
    puts("closed");
    fflush(stdout);
  }
}
