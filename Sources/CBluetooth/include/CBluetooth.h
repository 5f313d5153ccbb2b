// The kernel's Bluetooth sockets, as functions of plain C types. BlueZ's headers stay in the .c file: they declare
// again what Glibc's module declares, and the module that owns a name would then depend on the order in which files are
// compiled. Functions that fail return -1 with errno set, as the calls themselves do. Addresses are six bytes in the
// order they are written.

#ifndef CBLUETOOTH_H
#define CBLUETOOTH_H

#include <stddef.h>
#include <stdint.h>

/// socket(2) for RFCOMM: SOCK_STREAM, non-blocking, close-on-exec. May wait while the kernel loads a module.
int bluetooth_rfcomm_socket(void);
/// The same for L2CAP: SOCK_SEQPACKET, a message per call.
int bluetooth_l2cap_socket(void);

/// bind(2) to the adapter with that address.
int bluetooth_rfcomm_bind(int fd, const uint8_t *address);
int bluetooth_l2cap_bind(int fd, const uint8_t *address);

/// Whether a socket of this machine is bound to the PSM, for the adapter with that address or for none in particular
/// (NULL): 1 or 0. Binds the PSM itself for a moment, which needs CAP_NET_BIND_SERVICE.
int bluetooth_psm_is_taken(const uint8_t *adapter, uint16_t psm);

/// connect(2): EINPROGRESS, since the sockets do not block.
int bluetooth_rfcomm_connect(int fd, const uint8_t *address, uint8_t channel);
int bluetooth_l2cap_connect(int fd, const uint8_t *address, uint16_t psm);

/// bind(2) and listen(2) on a channel of the adapter with that address. NULL means all adapters, channel 0 the first
/// that is free.
int bluetooth_rfcomm_listen(int fd, const uint8_t *address, uint8_t channel, int queue);
/// The channel of a listening socket.
int bluetooth_rfcomm_channel(int fd);
/// Writes the address at the other end of a connected socket to `address`.
int bluetooth_rfcomm_peer(int fd, uint8_t *address);
/// bind(2) and listen(2) on all adapters. A PSM below 0x1001 needs CAP_NET_BIND_SERVICE (EACCES).
int bluetooth_l2cap_listen(int fd, uint16_t psm, int queue);
/// The longest message that the other side accepts (L2CAP_OPTIONS).
int bluetooth_l2cap_send_mtu(int fd);
/// accept4(2): non-blocking, close-on-exec.
int bluetooth_accept(int fd);

/// socket(2) for LE, bound to the adapter with that address. With `psm`: for a channel of its own (SOCK_STREAM: the
/// unread rest of a message stays). With 0: for ATT (SOCK_SEQPACKET). The bind marks the socket as LE for the kernel.
int bluetooth_le_socket(const uint8_t *adapter, uint16_t psm);
/// connect(2) of such a socket, to a random or a public address.
int bluetooth_le_connect(int fd, const uint8_t *address, int is_random, uint16_t psm);
/// BT_RCVMTU, before connect: the longest message that we accept.
int bluetooth_set_receive_mtu(int fd, uint16_t mtu);
/// BT_SNDMTU of a connected channel: the longest message that the other side accepts.
int bluetooth_send_mtu(int fd);
/// The security level in force (BT_SECURITY), 0 while there is no key yet.
int bluetooth_security(int fd);
/// Bytes that were written and are not with the controller yet, as the kernel counts them, with its own overhead.
int bluetooth_unsent(int fd);
/// Messages that the kernel has dropped because nobody read them (SO_MEMINFO).
int bluetooth_drops(int fd);

/// recvmmsg(2): reads the messages that have arrived, up to `most` and never more than 16. Each has at most `longest`
/// bytes; message n begins at byte n × `longest` of `room`. Returns the number of messages, with their sizes in
/// `sizes`; a message of size 0 is the end.
int bluetooth_receive(int fd, void *room, int most, size_t longest, uint32_t *sizes);
/// Sends the bytes as messages of `longest` bytes at most, each after the three bytes of `head`. Returns how many of
/// the bytes were taken; each message is sent whole or not at all.
long bluetooth_send_values(int fd, const uint8_t *head, const void *bytes, size_t count, size_t longest);

/// A socket on the kernel's management channel, non-blocking, close-on-exec. Needs no capability; some commands do. It
/// gets no scan events, see below.
int bluetooth_management_socket(void);
/// Sets whether such a socket gets scan events: devices found, and when scans begin and end. Each socket gets those of
/// all programs' scans, several a second.
void bluetooth_receive_scan_events(int fd, int hears);

/// BT_SECURITY, before connect: 1 low, 2 medium (encrypted), 3 high (authenticated pairing).
int bluetooth_set_security(int fd, uint8_t level);

struct bluetooth_adapter {
  uint16_t number;  // N of hciN
  int is_on;
  uint8_t address[6];
};
/// The adapters of this machine, `most` at most (HCIGETDEVLIST); returns how many. Needs no capability.
int bluetooth_adapters(struct bluetooth_adapter *adapters, int most);

#endif
