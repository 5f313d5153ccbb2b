// The kernel's Bluetooth sockets, as functions of plain C types. BlueZ's headers stay in the .c file: they declare again what
// Glibc's module declares, and whose a name is would then depend on the order in which files are compiled.
// Those that fail answer -1 with errno set, as the calls themselves do. Addresses are six bytes in the order they are written.

#ifndef CBLUETOOTH_H
#define CBLUETOOTH_H

#include <stddef.h>
#include <stdint.h>

/// socket(2) for RFCOMM: SOCK_STREAM, non-blocking, close-on-exec. May wait while the kernel loads a module.
int bluetooth_rfcomm_socket(void);
/// The same for L2CAP: SOCK_SEQPACKET, a message per call.
int bluetooth_l2cap_socket(void);

/// bind(2) to the adapter of that address.
int bluetooth_rfcomm_bind(int fd, const uint8_t *address);
int bluetooth_l2cap_bind(int fd, const uint8_t *address);

/// Whether some socket of this machine is bound to the PSM, of that adapter's address or of none in particular (NULL): 1 or 0. Binds it
/// itself for a moment, which takes CAP_NET_BIND_SERVICE.
int bluetooth_psm_is_taken(const uint8_t *adapter, uint16_t psm);

/// connect(2): EINPROGRESS, as the sockets do not block.
int bluetooth_rfcomm_connect(int fd, const uint8_t *address, uint8_t channel);
int bluetooth_l2cap_connect(int fd, const uint8_t *address, uint16_t psm);

/// bind(2) and listen(2) on a channel of the adapter of that address; NULL is all adapters, channel 0 the first that is free.
int bluetooth_rfcomm_listen(int fd, const uint8_t *address, uint8_t channel, int queue);
/// The channel of a socket that listens.
int bluetooth_rfcomm_channel(int fd);
/// The address of who is at the other end of a connected socket goes to `address`.
int bluetooth_rfcomm_peer(int fd, uint8_t *address);
/// bind(2) and listen(2) on all adapters. A PSM below 0x1001 takes CAP_NET_BIND_SERVICE (EACCES).
int bluetooth_l2cap_listen(int fd, uint16_t psm, int queue);
/// The longest message that the other side takes (L2CAP_OPTIONS).
int bluetooth_l2cap_send_mtu(int fd);
/// accept4(2): non-blocking, close-on-exec.
int bluetooth_accept(int fd);

/// socket(2) for LE, bound to the adapter of that address: with `psm` for a channel of its own (SOCK_STREAM: what a read leaves of a
/// message stays), with 0 for ATT (SOCK_SEQPACKET). The bind is what tells the kernel that it is for LE.
int bluetooth_le_socket(const uint8_t *adapter, uint16_t psm);
/// connect(2) of such a socket; an address is random or public.
int bluetooth_le_connect(int fd, const uint8_t *address, int is_random, uint16_t psm);
/// BT_RCVMTU before connect: the longest message we take.
int bluetooth_set_receive_mtu(int fd, uint16_t mtu);
/// BT_SNDMTU of a connected channel: the longest message the other side takes.
int bluetooth_send_mtu(int fd);
/// The level that holds (BT_SECURITY), 0 while there is no key yet.
int bluetooth_security(int fd);
/// What was written and is not with the controller yet, in bytes as the kernel counts them, with its own overhead.
int bluetooth_unsent(int fd);
/// Messages that the kernel has dropped because nobody read (SO_MEMINFO).
int bluetooth_drops(int fd);

/// recvmmsg(2): up to 16 messages that are there, `most` of them, each of `longest` bytes at most, at that distance in `room`. Answers how
/// many, with their sizes in `sizes`; one of size 0 is the end.
int bluetooth_receive(int fd, void *room, int most, size_t longest, uint32_t *sizes);
/// The bytes as messages of `longest` at most, each behind the three bytes of `head`. Answers how many of the bytes were
/// taken; each message is whole or not at all.
long bluetooth_send_values(int fd, const uint8_t *head, const void *bytes, size_t count, size_t longest);

/// A socket on the kernel's management channel, non-blocking, close-on-exec. Takes no capability; some commands do.
/// Without what scans tell, see below.
int bluetooth_management_socket(void);
/// Whether such a socket is told what scans hear, and when they begin and end: all are told of everybody's scans, several times a second.
void bluetooth_hear_scans(int fd, int hears);

/// BT_SECURITY before connect: 1 low, 2 medium (encrypted), 3 high (authenticated pairing).
int bluetooth_set_security(int fd, uint8_t level);

struct bluetooth_adapter {
  uint16_t number;  // of hciN
  int is_on;
  uint8_t address[6];
};
/// The adapters of this machine, `most` at most (HCIGETDEVLIST); answers how many. Takes no capability.
int bluetooth_adapters(struct bluetooth_adapter *adapters, int most);

#endif
