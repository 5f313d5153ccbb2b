// Gives a pty what a serial port has and a pty lacks: modem lines, break, data bits and parity. A library to preload into the program
// that opens the port (LD_PRELOAD), with MODEM_PORT=PATH:STATE:SOCKET in its environment.
//
// STATE is a file with `struct state`, shared with lines.py, which sets the lines that the device drives. Each change of DTR, RTS or
// break is sent to the unix datagram socket SOCKET with its time. The rest of the port is the kernel's.
#define _GNU_SOURCE
#include <asm/ioctls.h>
#include <asm/termbits.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/serial.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

// <sys/ioctl.h> has these too, but cannot be included next to <asm/termbits.h>.
#define DTR 0x002
#define RTS 0x004
#define CTS 0x020
#define CAR 0x040
#define RNG 0x080
#define DSR 0x100
#define KEPT (CSIZE | PARENB | PARODD | CMSPAR | CRTSCTS)

struct state {
  _Atomic uint32_t out;     // DTR and RTS
  _Atomic uint32_t in;      // CTS, CAR, RNG and DSR
  _Atomic uint32_t wired;   // 1: CTS follows RTS, and DSR follows DTR
  _Atomic uint32_t on_break;
  _Atomic uint32_t control; // the bits of c_cflag that a pty drops
  _Atomic uint32_t counts[8];  // breaks, framing, parity and overrun errors, then free
};

struct change {
  uint64_t nanoseconds;  // CLOCK_MONOTONIC
  uint32_t out, on_break;
};

static struct state *state;
static dev_t port;
static int told = -1;
static int (*real_ioctl)(int, unsigned long, ...);

static void start(void) {
  real_ioctl = (int (*)(int, unsigned long, ...))dlsym(RTLD_NEXT, "ioctl");
  char *words = getenv("MODEM_PORT");
  if (!words) return;
  words = strdup(words);
  char *rest = words;
  char *path = strsep(&rest, ":"), *file = strsep(&rest, ":"), *to = rest;
  struct stat status;
  int shared = open(file, O_RDWR | O_CLOEXEC);
  if (!to || stat(path, &status) || shared < 0) abort();
  port = status.st_rdev;
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strncpy(address.sun_path, to, sizeof address.sun_path - 1);
  told = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (told < 0 || connect(told, (struct sockaddr *)&address, sizeof address)) abort();
  state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, shared, 0);
  close(shared);
  if (state == MAP_FAILED) abort();
  free(words);
}

static int ours(int fd) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start);
  struct stat status;
  return state && !fstat(fd, &status) && S_ISCHR(status.st_mode) && status.st_rdev == port;
}

static void tell(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  struct change change = {
      .nanoseconds = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec, .out = state->out, .on_break = state->on_break};
  if (send(told, &change, sizeof change, 0) < 0) { /* nobody is there any more */ }
}

static int set_out(uint32_t out) {
  out &= DTR | RTS;
  if (atomic_exchange(&state->out, out) != out) tell();
  return 0;
}

static int set_break(uint32_t on) {
  if (atomic_exchange(&state->on_break, on) != on) tell();
  return 0;
}

static uint32_t lines(void) {
  uint32_t in = state->in, out = state->out;
  if (state->wired) in = (out & RTS ? CTS : 0) | (out & DTR ? DSR : 0) | (in & (CAR | RNG));
  return in | out;
}

static int await_change(uint32_t mask) {
  uint32_t before = lines();
  for (;;) {
    struct timespec pause = {.tv_nsec = 1000000};
    if (nanosleep(&pause, NULL)) return -1;  // EINTR
    uint32_t changed = lines() ^ before;
    if (changed & mask) return 0;
    before ^= changed;
  }
}

static int get_counts(struct serial_icounter_struct *counts) {
  memset(counts, 0, sizeof *counts);
  counts->brk = (int)state->counts[0];
  counts->frame = (int)state->counts[1];
  counts->parity = (int)state->counts[2];
  counts->overrun = (int)state->counts[3];
  return 0;
}

// All structures of settings begin with four words, of which the third is c_cflag.
static int settings(int fd, unsigned long request, uint32_t *settings) {
  int get = request == TCGETS || request == TCGETS2;
  if (!get) state->control = settings[2] & KEPT;
  int result = real_ioctl(fd, request, settings);
  if (get && !result) settings[2] = (settings[2] & ~(uint32_t)KEPT) | state->control;
  return result;
}

int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void *argument = va_arg(list, void *);
  va_end(list);
  if (!ours(fd)) return real_ioctl(fd, request, argument);
  uint32_t *value = argument;
  switch (request) {
    case TIOCMGET: *value = lines(); return 0;
    case TIOCMBIS: return set_out(state->out | *value);
    case TIOCMBIC: return set_out(state->out & ~*value);
    case TIOCMSET: return set_out(*value);
    case TIOCMIWAIT: return await_change((uint32_t)(uintptr_t)argument);
    case TIOCGICOUNT: return get_counts(argument);
    case TIOCSBRK: return set_break(1);
    case TIOCCBRK: return set_break(0);
    case TCGETS: case TCGETS2:
    case TCSETS: case TCSETSW: case TCSETSF:
    case TCSETS2: case TCSETSW2: case TCSETSF2: return settings(fd, request, argument);
    default: return real_ioctl(fd, request, argument);
  }
}

// glibc's own functions do not call `ioctl` by its name. Its structure begins like the kernel's.
int tcgetattr(int fd, struct termios *out) {
  int (*real)(int, struct termios *) = (int (*)(int, struct termios *))dlsym(RTLD_NEXT, "tcgetattr");
  int result = real(fd, out);
  if (!result && ours(fd)) out->c_cflag = (out->c_cflag & ~(uint32_t)KEPT) | state->control;
  return result;
}

int tcsetattr(int fd, int when, const struct termios *in) {
  int (*real)(int, int, const struct termios *) = (int (*)(int, int, const struct termios *))dlsym(RTLD_NEXT, "tcsetattr");
  if (ours(fd)) state->control = in->c_cflag & KEPT;
  return real(fd, when, in);
}

int tcsendbreak(int fd, int duration) {
  int (*real)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "tcsendbreak");
  if (!ours(fd)) return real(fd, duration);
  struct timespec pause = {.tv_nsec = 250000000};
  set_break(1);
  nanosleep(&pause, NULL);
  return set_break(0);
}
