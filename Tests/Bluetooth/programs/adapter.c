// Switches hci0 on or off, or prints its state: adapter up|down|state. Prints "none", "off" or "on". adapter links:
// prints its links, one per line, including those being made or ended: kind (1 Classic, 128 LE), the kernel's state,
// address.
#include <bluetooth/bluetooth.h>
#include <bluetooth/hci.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static int links(int fd) {
  struct {
    struct hci_conn_list_req list;
    struct hci_conn_info room[32];
  } asked = {.list.conn_num = 32};
  if (ioctl(fd, HCIGETCONNLIST, &asked) < 0) {
    perror("HCIGETCONNLIST");
    return 1;
  }
  for (int i = 0; i < asked.list.conn_num; i++) {
    const struct hci_conn_info *link = &asked.list.conn_info[i];
    printf("%d %d", link->type, link->state);
    for (int place = 5; place >= 0; place--) printf("%c%02X", place == 5 ? ' ' : ':', link->bdaddr.b[place]);
    puts("");
  }
  return 0;
}

int main(int count, char **words) {
  int fd = socket(AF_BLUETOOTH, SOCK_RAW, BTPROTO_HCI);
  if (fd < 0 || count != 2) return 64;
  if (strcmp(words[1], "links") == 0) return links(fd);
  if (strcmp(words[1], "up") == 0 && ioctl(fd, HCIDEVUP, 0) < 0 && errno != EALREADY) {
    perror("HCIDEVUP");
    return 1;
  }
  if (strcmp(words[1], "down") == 0 && ioctl(fd, HCIDEVDOWN, 0) < 0) {
    perror("HCIDEVDOWN");
    return 1;
  }
  struct {
    struct hci_dev_list_req list;
    struct hci_dev_req first;
  } asked = {.list.dev_num = 1};
  if (ioctl(fd, HCIGETDEVLIST, &asked) < 0 || asked.list.dev_num == 0) {
    puts("none");
  } else {
    puts(asked.list.dev_req[0].dev_opt & 1 << HCI_UP ? "on" : "off");
  }
  return 0;
}
