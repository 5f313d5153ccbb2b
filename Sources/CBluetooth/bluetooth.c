#include "CBluetooth.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/filter.h>
#include <linux/sock_diag.h>

#include <bluetooth/bluetooth.h>
#include <bluetooth/hci.h>
#include <bluetooth/l2cap.h>
#include <bluetooth/rfcomm.h>

enum { FLAGS = SOCK_NONBLOCK | SOCK_CLOEXEC };

// The kernel stores the last byte first. libbluetooth's str2ba does the same, but we do not link that library.
static bdaddr_t reversed(const uint8_t *address) {
  bdaddr_t turned;
  for (int i = 0; i < 6; i++) turned.b[i] = address[5 - i];
  return turned;
}

int bluetooth_rfcomm_socket(void) { return socket(AF_BLUETOOTH, SOCK_STREAM | FLAGS, BTPROTO_RFCOMM); }

int bluetooth_l2cap_socket(void) { return socket(AF_BLUETOOTH, SOCK_SEQPACKET | FLAGS, BTPROTO_L2CAP); }

static struct sockaddr_rc rfcomm_address(const uint8_t *address, uint8_t channel) {
  return (struct sockaddr_rc){.rc_family = AF_BLUETOOTH, .rc_bdaddr = reversed(address), .rc_channel = channel};
}

static struct sockaddr_l2 l2cap_address(const uint8_t *address, uint16_t psm) {
  return (struct sockaddr_l2){.l2_family = AF_BLUETOOTH, .l2_psm = htobs(psm), .l2_bdaddr = reversed(address)};
}

int bluetooth_rfcomm_bind(int fd, const uint8_t *address) {
  struct sockaddr_rc socket_address = rfcomm_address(address, 0);
  return bind(fd, (struct sockaddr *)&socket_address, sizeof socket_address);
}

int bluetooth_l2cap_bind(int fd, const uint8_t *address) {
  struct sockaddr_l2 socket_address = l2cap_address(address, 0);
  return bind(fd, (struct sockaddr *)&socket_address, sizeof socket_address);
}

int bluetooth_psm_is_taken(const uint8_t *adapter, uint16_t psm) {
  static const uint8_t any[6];
  int fd = bluetooth_l2cap_socket();
  if (fd < 0) return -1;
  struct sockaddr_l2 socket_address = l2cap_address(adapter ? adapter : any, psm);
  int answer = bind(fd, (struct sockaddr *)&socket_address, sizeof socket_address);
  int number = errno;
  close(fd);
  if (answer == 0) return 0;
  errno = number;
  return number == EADDRINUSE ? 1 : -1;
}

int bluetooth_rfcomm_connect(int fd, const uint8_t *address, uint8_t channel) {
  struct sockaddr_rc socket_address = rfcomm_address(address, channel);
  return connect(fd, (struct sockaddr *)&socket_address, sizeof socket_address);
}

int bluetooth_l2cap_connect(int fd, const uint8_t *address, uint16_t psm) {
  struct sockaddr_l2 socket_address = l2cap_address(address, psm);
  return connect(fd, (struct sockaddr *)&socket_address, sizeof socket_address);
}

int bluetooth_rfcomm_listen(int fd, const uint8_t *address, uint8_t channel, int queue) {
  static const uint8_t any[6];
  struct sockaddr_rc socket_address = rfcomm_address(address ? address : any, channel);
  return bind(fd, (struct sockaddr *)&socket_address, sizeof socket_address) < 0 ? -1 : listen(fd, queue);
}

int bluetooth_rfcomm_channel(int fd) {
  struct sockaddr_rc socket_address = {0};
  socklen_t size = sizeof socket_address;
  return getsockname(fd, (struct sockaddr *)&socket_address, &size) < 0 ? -1 : socket_address.rc_channel;
}

int bluetooth_rfcomm_peer(int fd, uint8_t *address) {
  struct sockaddr_rc socket_address = {0};
  socklen_t size = sizeof socket_address;
  if (getpeername(fd, (struct sockaddr *)&socket_address, &size) < 0) return -1;
  for (int i = 0; i < 6; i++) address[i] = socket_address.rc_bdaddr.b[5 - i];
  return 0;
}

int bluetooth_l2cap_listen(int fd, uint16_t psm, int queue) {
  static const uint8_t any[6];
  struct sockaddr_l2 socket_address = l2cap_address(any, psm);
  return bind(fd, (struct sockaddr *)&socket_address, sizeof socket_address) < 0 ? -1 : listen(fd, queue);
}

int bluetooth_l2cap_send_mtu(int fd) {
  struct l2cap_options options = {0};
  socklen_t size = sizeof options;
  return getsockopt(fd, SOL_L2CAP, L2CAP_OPTIONS, &options, &size) < 0 ? -1 : options.omtu;
}

int bluetooth_accept(int fd) { return accept4(fd, NULL, NULL, FLAGS); }

int bluetooth_set_security(int fd, uint8_t level) {
  struct bt_security security = {.level = level};
  return setsockopt(fd, SOL_BLUETOOTH, BT_SECURITY, &security, sizeof security);
}

enum { ATT_CHANNEL = 4 };  // L2CAP's fixed channel for ATT

static struct sockaddr_l2 le_address(const uint8_t *address, uint8_t type, uint16_t psm) {
  struct sockaddr_l2 socket_address = l2cap_address(address, psm);
  socket_address.l2_bdaddr_type = type;
  socket_address.l2_cid = psm ? 0 : htobs(ATT_CHANNEL);
  return socket_address;
}

int bluetooth_le_socket(const uint8_t *adapter, uint16_t psm) {
  int fd = socket(AF_BLUETOOTH, (psm ? SOCK_STREAM : SOCK_SEQPACKET) | FLAGS, BTPROTO_L2CAP);
  if (fd < 0) return -1;
  struct sockaddr_l2 socket_address = le_address(adapter, BDADDR_LE_PUBLIC, psm);
  socket_address.l2_psm = 0;  // the kernel chooses our own
  if (bind(fd, (struct sockaddr *)&socket_address, sizeof socket_address) == 0) return fd;
  int number = errno;
  close(fd);
  errno = number;
  return -1;
}

int bluetooth_le_connect(int fd, const uint8_t *address, int is_random, uint16_t psm) {
  struct sockaddr_l2 socket_address = le_address(address, is_random ? BDADDR_LE_RANDOM : BDADDR_LE_PUBLIC, psm);
  return connect(fd, (struct sockaddr *)&socket_address, sizeof socket_address);
}

int bluetooth_set_receive_mtu(int fd, uint16_t mtu) {
  return setsockopt(fd, SOL_BLUETOOTH, BT_RCVMTU, &mtu, sizeof mtu);
}

int bluetooth_send_mtu(int fd) {
  uint16_t mtu = 0;
  socklen_t size = sizeof mtu;
  return getsockopt(fd, SOL_BLUETOOTH, BT_SNDMTU, &mtu, &size) < 0 ? -1 : mtu;
}

int bluetooth_security(int fd) {
  struct bt_security security = {0};
  socklen_t size = sizeof security;
  if (getsockopt(fd, SOL_BLUETOOTH, BT_SECURITY, &security, &size) < 0) return -1;
  return security.key_size ? security.level : 0;
}

int bluetooth_unsent(int fd) {
  int room = 0, size = 0;
  socklen_t length = sizeof size;
  if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, &length) < 0 || ioctl(fd, TIOCOUTQ, &room) < 0) return 0;
  return room < size ? size - room : 0;  // Bluetooth sockets return the free room
}

int bluetooth_drops(int fd) {
  uint32_t info[SK_MEMINFO_VARS] = {0};
  socklen_t size = sizeof info;
  return getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &size) < 0 ? 0 : (int)info[SK_MEMINFO_DROPS];
}

int bluetooth_receive(int fd, void *room, int most, size_t longest, uint32_t *sizes) {
  enum { BATCH = 16 };
  struct mmsghdr messages[BATCH];
  struct iovec parts[BATCH];
  if (most > BATCH) most = BATCH;
  for (int i = 0; i < most; i++) {
    parts[i] = (struct iovec){(char *)room + (size_t)i * longest, longest};
    messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[i], .msg_iovlen = 1}};
  }
  int count = recvmmsg(fd, messages, (unsigned)most, 0, NULL);
  for (int i = 0; i < count; i++) sizes[i] = messages[i].msg_len;
  return count;
}

long bluetooth_send_values(int fd, const uint8_t *head, const void *bytes, size_t count, size_t longest) {
  size_t taken = 0;
  while (taken < count) {
    size_t size = count - taken < longest ? count - taken : longest;
    struct iovec parts[] = {{(void *)(uintptr_t)head, 3}, {(char *)(uintptr_t)bytes + taken, size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return taken ? (long)taken : -1;
    taken += size;
  }
  return (long)taken;
}

int bluetooth_management_socket(void) {
  int fd = socket(AF_BLUETOOTH, SOCK_RAW | FLAGS, BTPROTO_HCI);
  if (fd < 0) return -1;
  struct sockaddr_hci socket_address = {
      .hci_family = AF_BLUETOOTH, .hci_dev = HCI_DEV_NONE, .hci_channel = HCI_CHANNEL_CONTROL};
  bluetooth_receive_scan_events(fd, 0);
  if (bind(fd, (struct sockaddr *)&socket_address, sizeof socket_address) == 0) return fd;
  int number = errno;
  close(fd);
  errno = number;
  return -1;
}

void bluetooth_receive_scan_events(int fd, int hears) {
  // Messages begin with the event's code, little-endian, which BPF reads as big-endian: Device Found is 0x12,
  // Discovering 0x13.
  static struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x1200, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x1300, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  int unused = 0;  // the kernel requires an int, and ignores it
  // If this fails, the socket gets more events than needed.
  if (hears) setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused);
  else setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

static int ask_adapters(int fd, struct bluetooth_adapter *adapters, int most) {
  struct hci_dev_list_req *list = calloc(1, sizeof *list + HCI_MAX_DEV * sizeof *list->dev_req);
  if (!list) return -1;
  list->dev_num = HCI_MAX_DEV;
  if (ioctl(fd, HCIGETDEVLIST, list) < 0) {
    int number = errno;
    free(list);
    errno = number;
    return -1;
  }
  int count = 0;
  for (int i = 0; i < list->dev_num && count < most; i++) {
    struct hci_dev_info info = {.dev_id = list->dev_req[i].dev_id};
    if (ioctl(fd, HCIGETDEVINFO, &info) < 0) continue;  // the adapter has just disappeared
    struct bluetooth_adapter *adapter = &adapters[count++];
    adapter->number = info.dev_id;
    // Not info.flags: there, an adapter that switches itself off in a moment still counts as on.
    adapter->is_on = (list->dev_req[i].dev_opt & 1 << HCI_UP) != 0;
    for (int i = 0; i < 6; i++) adapter->address[i] = info.bdaddr.b[5 - i];
  }
  free(list);
  return count;
}

int bluetooth_adapters(struct bluetooth_adapter *adapters, int most) {
  int fd = socket(AF_BLUETOOTH, SOCK_RAW | SOCK_CLOEXEC, BTPROTO_HCI);
  if (fd < 0) return -1;
  int count = ask_adapters(fd, adapters, most);
  int number = errno;
  close(fd);
  errno = number;
  return count;
}
