// Inspects a serial port through the descriptor of the process that has it open, because opening it here would raise
// DTR and RTS, as every opening does.
//
//   port line PID DEVICE    the driver's settings as one JSON object
//   port loop PID DEVICE on|off   loopback: RTS is CTS, and DTR is DSR
//   port break DEVICE       opens it and sends a break
//   port mark USB-NODE      sends a USB request that no serial driver sends (GET_STATUS), as a mark in usbmon's record

#define _GNU_SOURCE
#include <asm/termbits.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/serial.h>
#include <linux/usbdevice_fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// <asm/termios.h> defines these, but conflicts with <asm/termbits.h>.
enum { DTR = 0x002, RTS = 0x004, LOOP = 0x8000 };

static const char *parity(unsigned flags) {
  if (!(flags & PARENB)) return "none";
  if (flags & CMSPAR) return flags & PARODD ? "mark" : "space";
  return flags & PARODD ? "odd" : "even";
}

static const char *flag(unsigned is_on) { return is_on ? "true" : "false"; }

// The descriptor number that process `pid` has for `device`, or -1; `is_locked`: whether it holds flock(2).
static int find(const char *pid, const char *device, int *is_locked) {
  char path[320], target[256], lock[256];
  snprintf(path, sizeof path, "/proc/%s/fd", pid);
  DIR *folder = opendir(path);
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    snprintf(path, sizeof path, "/proc/%s/fd/%.20s", pid, entry->d_name);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0 || (size_t)length != strlen(device) || memcmp(target, device, (size_t)length) != 0) continue;
    snprintf(path, sizeof path, "/proc/%s/fdinfo/%.20s", pid, entry->d_name);
    FILE *info = fopen(path, "r");
    for (*is_locked = 0; info && fgets(lock, sizeof lock, info);)
      if (strncmp(lock, "lock:", 5) == 0 && strstr(lock, " FLOCK ")) *is_locked = 1;
    return atoi(entry->d_name);
  }
  return -1;
}

// A copy of that descriptor, or -1.
static int borrow(const char *pid, const char *device, int *is_locked) {
  int number = find(pid, device, is_locked);
  int process = (int)syscall(SYS_pidfd_open, atoi(pid), 0);
  return number < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, number, 0);
}

static int loop(const char *pid, const char *device, const char *word) {
  int locked, bits = LOOP, tty = borrow(pid, device, &locked);
  if (tty < 0 || ioctl(tty, strcmp(word, "on") == 0 ? TIOCMBIS : TIOCMBIC, &bits) < 0) return perror(device), 1;
  return 0;
}

static int send_break(const char *device) {
  int tty = open(device, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (tty < 0 || ioctl(tty, TCSBRK, 0) < 0) return perror(device), 1;
  return 0;
}

static int line(const char *pid, const char *device) {
  int locked = 0, tty = borrow(pid, device, &locked);
  struct termios2 modes;
  if (tty < 0 || ioctl(tty, TCGETS2, &modes) < 0) return perror(device), 1;
  static const int sizes[] = {[CS5 / CS6] = 5, [CS6 / CS6] = 6, [CS7 / CS6] = 7, [CS8 / CS6] = 8};
  struct serial_struct serial = {0};
  int has_serial = ioctl(tty, TIOCGSERIAL, &serial) == 0, outputs = 0, exclusive = 0;
  ioctl(tty, TIOCMGET, &outputs);
  ioctl(tty, TIOCGEXCL, &exclusive);
  unsigned flags = modes.c_cflag;
  int raw = !modes.c_oflag && !modes.c_lflag && !(modes.c_iflag & ~(unsigned)(IXON | IXOFF));
  printf("{\"baud\": %u, \"baud-in\": %u, \"data\": %d, \"parity\": \"%s\", \"stop\": %d,\n", modes.c_ospeed,
    modes.c_ispeed, sizes[(flags & CSIZE) / CS6], parity(flags), flags & CSTOPB ? 2 : 1);
  printf(" \"rtscts\": %s, \"xonxoff\": %s, \"hupcl\": %s, \"clocal\": %s, \"raw\": %s, \"vmin\": %d, \"vtime\": %d,\n",
    flag(flags & CRTSCTS), flag((modes.c_iflag & (IXON | IXOFF)) == (IXON | IXOFF)), flag(flags & HUPCL),
    flag(flags & CLOCAL), flag((unsigned)raw), modes.c_cc[VMIN], modes.c_cc[VTIME]);
  printf(" \"exclusive\": %s, \"locked\": %s, \"low-latency\": %s, \"dtr\": %s, \"rts\": %s}\n", flag((unsigned)exclusive),
    flag((unsigned)locked), has_serial ? flag(serial.flags & ASYNC_LOW_LATENCY) : "null", flag((unsigned)outputs & DTR),
    flag((unsigned)outputs & RTS));
  return 0;
}

static int mark(const char *path) {
  unsigned char status[2];
  struct usbdevfs_ctrltransfer request = {.bRequestType = 0x80, .bRequest = 0, .wLength = 2, .timeout = 1000, .data = status};
  int device = open(path, O_RDWR | O_CLOEXEC);
  if (device < 0 || ioctl(device, USBDEVFS_CONTROL, &request) < 0) return perror(path), 1;
  return 0;
}

int main(int count, char **words) {
  if (count == 4 && strcmp(words[1], "line") == 0) return line(words[2], words[3]);
  if (count == 5 && strcmp(words[1], "loop") == 0) return loop(words[2], words[3], words[4]);
  if (count == 3 && strcmp(words[1], "break") == 0) return send_break(words[2]);
  if (count == 3 && strcmp(words[1], "mark") == 0) return mark(words[2]);
  fprintf(stderr, "port line PID DEVICE | port loop PID DEVICE on|off | port break DEVICE | port mark USB-NODE\n");
  return 64;
}
