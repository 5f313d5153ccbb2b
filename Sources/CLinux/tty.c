// Never include <termios.h> here: it excludes <asm/termbits.h>, which has termios2 and its free bit rates.
#include "CLinux.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <asm/termbits.h>
#include <linux/serial.h>
#include <sys/ioctl.h>

// A rate that has a B-name uses it: programs that know only those (stty, older pyserial) then read it back correctly.
static const struct { uint32_t rate; tcflag_t name; } named_rates[] = {
  {50, B50}, {75, B75}, {110, B110}, {134, B134}, {150, B150}, {200, B200}, {300, B300}, {600, B600},
  {1200, B1200}, {1800, B1800}, {2400, B2400}, {4800, B4800}, {9600, B9600}, {19200, B19200}, {38400, B38400},
  {57600, B57600}, {115200, B115200}, {230400, B230400}, {460800, B460800}, {500000, B500000}, {576000, B576000},
  {921600, B921600}, {1000000, B1000000}, {1152000, B1152000}, {1500000, B1500000}, {2000000, B2000000},
  {2500000, B2500000}, {3000000, B3000000}, {3500000, B3500000}, {4000000, B4000000},
};

static tcflag_t rate_name(uint32_t rate) {
  for (size_t i = 0; i < sizeof named_rates / sizeof *named_rates; i++)
    if (named_rates[i].rate == rate) return named_rates[i].name;
  return BOTHER;
}

static const tcflag_t rate_bits = CBAUD | (tcflag_t)CBAUD << IBSHIFT;

int linux_tcgets2(int fd, struct linux_termios *modes) {
  struct termios2 now;
  if (ioctl(fd, TCGETS2, &now) < 0) return -1;
  modes->iflag = now.c_iflag;
  modes->oflag = now.c_oflag;
  modes->cflag = now.c_cflag & ~rate_bits;
  modes->lflag = now.c_lflag;
  modes->input_rate = now.c_ispeed;
  modes->output_rate = now.c_ospeed;
  modes->min = now.c_cc[VMIN];
  modes->time = now.c_cc[VTIME];
  modes->start = now.c_cc[VSTART];
  modes->stop = now.c_cc[VSTOP];
  modes->discipline = now.c_line;
  memcpy(modes->others, now.c_cc, sizeof modes->others);
  return 0;
}

int linux_tcsets2(int fd, const struct linux_termios *modes) {
  struct termios2 next = {.c_line = modes->discipline};
  _Static_assert(sizeof next.c_cc == sizeof modes->others, "c_cc has another size here");
  memcpy(next.c_cc, modes->others, sizeof next.c_cc);
  next.c_iflag = modes->iflag;
  next.c_oflag = modes->oflag;
  next.c_cflag = (modes->cflag & ~rate_bits) | rate_name(modes->output_rate);
  // CIBAUD of 0 means that both rates are the same.
  if (modes->input_rate != modes->output_rate) next.c_cflag |= rate_name(modes->input_rate) << IBSHIFT;
  next.c_lflag = modes->lflag;
  next.c_ispeed = modes->input_rate;
  next.c_ospeed = modes->output_rate;
  next.c_cc[VMIN] = modes->min;
  next.c_cc[VTIME] = modes->time;
  next.c_cc[VSTART] = modes->start;
  next.c_cc[VSTOP] = modes->stop;
  return ioctl(fd, TCSETS2, &next);
}

int linux_set_low_latency(int fd, int on) {
  struct serial_struct serial;
  if (ioctl(fd, TIOCGSERIAL, &serial) < 0) return -1;
  int flags = on ? serial.flags | ASYNC_LOW_LATENCY : serial.flags & ~ASYNC_LOW_LATENCY;
  if (flags == serial.flags) return 0;
  serial.flags = flags;
  return ioctl(fd, TIOCSSERIAL, &serial);
}

int linux_get_rs485(int fd, struct linux_rs485 *mode) {
  struct serial_rs485 now;
  if (ioctl(fd, TIOCGRS485, &now) < 0) return -1;
  mode->on = (now.flags & SER_RS485_ENABLED) != 0;
  mode->rts_on_send = (now.flags & SER_RS485_RTS_ON_SEND) != 0;
  mode->rts_after_send = (now.flags & SER_RS485_RTS_AFTER_SEND) != 0;
  mode->milliseconds_before = now.delay_rts_before_send;
  mode->milliseconds_after = now.delay_rts_after_send;
  return 0;
}

int linux_set_rs485(int fd, const struct linux_rs485 *mode) {
  struct serial_rs485 next;
  if (ioctl(fd, TIOCGRS485, &next) < 0) return -1;  // for what linux_rs485 does not hold: termination, echo
  next.flags &= ~(SER_RS485_ENABLED | SER_RS485_RTS_ON_SEND | SER_RS485_RTS_AFTER_SEND);
  if (mode->on) next.flags |= SER_RS485_ENABLED;
  if (mode->rts_on_send) next.flags |= SER_RS485_RTS_ON_SEND;
  if (mode->rts_after_send) next.flags |= SER_RS485_RTS_AFTER_SEND;
  next.delay_rts_before_send = mode->milliseconds_before;
  next.delay_rts_after_send = mode->milliseconds_after;
  return ioctl(fd, TIOCSRS485, &next);
}

int linux_count_line(int fd, struct linux_line_counts *counts) {
  struct serial_icounter_struct now = {0};
  if (ioctl(fd, TIOCGICOUNT, &now) < 0) return -1;
  counts->breaks = (uint32_t)now.brk;
  counts->framing = (uint32_t)now.frame;
  counts->parity = (uint32_t)now.parity;
  counts->overruns = (uint32_t)now.overrun;
  counts->buffer_overruns = (uint32_t)now.buf_overrun;
  counts->cts = (uint32_t)now.cts;
  counts->dsr = (uint32_t)now.dsr;
  counts->dcd = (uint32_t)now.dcd;
  counts->ri = (uint32_t)now.rng;
  return 0;
}

struct modem_wait { int tty, bell; };

// Only a signal ends TIOCMIWAIT. Cancelling uses a signal of glibc's own, so the process needs no further handler. And
// unlike EINTR, it can't be lost between the check whether to continue and the call.
static void *wait_for_modem(void *argument) {
  struct modem_wait wait = *(struct modem_wait *)argument;
  free(argument);
  const struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
  for (;;) {
    int before;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    int answer = ioctl(wait.tty, TIOCMIWAIT, TIOCM_CTS | TIOCM_DSR | TIOCM_CD | TIOCM_RNG);
    int error = errno;
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before);
    if (answer < 0 && error != EINTR) return NULL;
    uint64_t one = 1;
    if (answer == 0 && write(wait.bell, &one, sizeof one) < 0) return NULL;
    nanosleep(&pause, NULL);
    // No wait ends for a change during the pause.
    if (answer == 0 && write(wait.bell, &one, sizeof one) < 0) return NULL;
  }
}

int linux_start_modem_wait(int fd, int bell, pthread_t *thread) {
  struct modem_wait *wait = malloc(sizeof *wait);
  if (wait == NULL) return -1;
  wait->tty = fd;
  wait->bell = bell;
  // Signals are for other threads.
  sigset_t all, mask;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &mask);
  int error = pthread_create(thread, NULL, wait_for_modem, wait);
  pthread_sigmask(SIG_SETMASK, &mask, NULL);
  if (error == 0) return 0;
  free(wait);
  errno = error;
  return -1;
}

void linux_end_modem_wait(pthread_t thread) {
  pthread_cancel(thread);
  pthread_join(thread, NULL);
}
