// The kernel's Bluetooth sockets, as functions of plain C types. BlueZ's headers stay in the .c file: they declare again what
// Glibc's module declares, and whose a name is would then depend on the order in which files are compiled.
// Those that fail answer -1 with errno set, as the calls themselves do. Addresses are six bytes in the order they are written.

#ifndef CBLUETOOTH_H
#define CBLUETOOTH_H

#include <stdint.h>

/// socket(2) for RFCOMM: SOCK_STREAM, non-blocking, close-on-exec. May wait while the kernel loads a module.
int bluetooth_rfcomm_socket(void);
/// The same for L2CAP: SOCK_SEQPACKET, a message per call.
int bluetooth_l2cap_socket(void);

/// bind(2) to the adapter of that address.
int bluetooth_rfcomm_bind(int fd, const uint8_t *address);
int bluetooth_l2cap_bind(int fd, const uint8_t *address);

/// connect(2): EINPROGRESS, as the sockets do not block.
int bluetooth_rfcomm_connect(int fd, const uint8_t *address, uint8_t channel);
int bluetooth_l2cap_connect(int fd, const uint8_t *address, uint16_t psm);

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
