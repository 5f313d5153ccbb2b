// Linux calls that Swift's Glibc module lacks. Each function is the call of its man page, one to one, under the name
// linux_CALL. Those that fail return -1 with errno set, as the call itself does.

#ifndef CLINUX_H
#define CLINUX_H

#include <pthread.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <sys/types.h>

/// accept4(2) with SOCK_NONBLOCK | SOCK_CLOEXEC.
int linux_accept(int fd, struct sockaddr *address, socklen_t *length);
/// socket(2) with SOCK_NONBLOCK | SOCK_CLOEXEC.
int linux_socket(int domain, int type, int protocol);
/// socketpair(2), both ends non-blocking and close-on-exec.
int linux_socketpair(int domain, int type, int ends[2]);

/// Maps `length` bytes (a multiple of the page size) twice in a row, so that a ring has no seam. Needs no descriptor
/// where mremap(2) can do it. NULL with errno set if it fails; free it with linux_unmap_mirrored.
void *linux_map_mirrored(size_t length);
void linux_unmap_mirrored(void *memory, size_t length);

/// "EADDRINUSE" for an errno, or NULL if the number is unknown. Static text, safe on any thread.
const char *linux_errno_name(int number);
/// "Address already in use". Static text, safe on any thread.
const char *linux_errno_text(int number);

/// What TCP knows about its peer (TCP_INFO of tcp(7)).
struct linux_tcp_state {
  uint32_t unacknowledged;      // segments sent and not acknowledged
  uint32_t probes;              // window probes sent and not answered
  uint32_t last_ack_milliseconds;  // age of the last acknowledgement
  uint32_t not_sent;            // bytes in the queue that were never sent
};
int linux_tcp_state(int fd, struct linux_tcp_state *state);

/// The user, or the process and its user, at the other end of a connected unix socket (SO_PEERCRED of unix(7)).
int linux_peer_user(int fd, uid_t *user);
int linux_peer_process(int fd, pid_t *process, uid_t *user);

/// Opens a pty pair and returns the master, non-blocking and close-on-exec. The slave is unlocked; its path goes to
/// `path`.
int linux_open_pty(char *path, size_t capacity);
/// TIOCGPTPEER of ioctl_tty(2): opens the slave of a master, non-blocking, close-on-exec and never as the controlling
/// terminal. Any user may own the slave; EBUSY if a program has it exclusively.
int linux_open_peer(int master);

/// openat(2) with O_PATH | O_NOFOLLOW | O_CLOEXEC: the named thing itself, of any kind, without touching it.
int linux_open_path(int folder, const char *name);
/// fchownat(2) with AT_EMPTY_PATH. Also for a descriptor of linux_open_path.
int linux_change_owner(int fd, uid_t user, gid_t group);
/// fchmod(2). It refuses a descriptor of linux_open_path; for such a one use chmod(2) on /proc/self/fd/N.
int linux_change_mode(int fd, mode_t mode);
/// renameat2(2) with RENAME_EXCHANGE: both names stay and exchange what they name.
int linux_exchange(int folder, const char *name, int other_folder, const char *other_name);
/// renameat2(2) with RENAME_NOREPLACE. On a file system without it, link(2) does it for everything but folders.
int linux_rename_new(int folder, const char *name, int to_folder, const char *to_name);

/// Reports a fatal signal (SIGILL, SIGTRAP, SIGSEGV, SIGBUS, SIGABRT, SIGFPE) before the process dies of it. The report
/// is one line on standard error: the signal, the place in the program as an offset from its load address, places found
/// on the stack, `version` and the build ID. For a program as a whole; its exit status stays the same.
int linux_report_crashes(const char *version);

/// posix_spawn(3) without a shell and without our descriptors, signal mask and handlers, in a process group of its own.
/// `stream` becomes standard input and output, `errors` standard error. If `terminal`, a path, is given, it becomes all
/// three, and the controlling terminal of a session of its own.
int linux_spawn(
  pid_t *pid, const char *path, char *const arguments[], char *const environment[], int stream, int errors,
  const char *terminal);
/// pidfd_open(2): readable when the process has ended.
int linux_pidfd(pid_t pid);
/// waitpid(2) without waiting. 1: the process has ended and is reaped, with its exit status, or else the signal that
/// killed it. 0: it is running. -1 with ECHILD: other code has reaped it, as the kernel does where SIGCHLD is ignored.
int linux_reap(pid_t pid, int *status, int *signal);
/// A child that has ended and is not reaped yet; 0 if there is none. It stays as it is.
pid_t linux_ended_child(void);
/// PIDFD_GET_INFO of Linux 6.15: how a process ended that other code has reaped. 1 with the result, 0 if the result
/// comes in a moment, -1 on other kernels.
int linux_pidfd_end(int pidfd, int *status, int *signal);

/// Memory for a guard's set of process groups, shared with the guard. NULL with errno set if it fails. Never freed.
void *linux_guard_groups(void);
/// Safe on any thread; takes effect at once.
void linux_guard_add(void *groups, pid_t group);
void linux_guard_remove(void *groups, pid_t group);
int linux_guard_knows(const void *groups, pid_t group);
/// Starts a process, not a child of ours, that waits until nobody has the writing end of a pipe open. It then kills all
/// `groups` with SIGKILL and ends. Returns that writing end. The process has a session of its own, blocks all signals,
/// and keeps no other descriptor and next to no memory.
int linux_start_guard(void *groups);
/// Whether the process at the other end of `pipe` has ended.
int linux_guard_is_gone(int pipe);
/// Whether this process ignores a signal, sigaction(2).
int linux_ignores(int number);
/// "SEGV" for a signal, or NULL if the number is unknown. Static text.
const char *linux_signal_name(int number);
/// pipe2(2), close-on-exec; the reading end, ends[0], is non-blocking.
int linux_pipe(int ends[2]);

/// Starts `count` threads that do nothing, as large as Dispatch's own, and waits for their end. Returns 0, or the errno
/// of the first that could not be started (EAGAIN: a limit of threads or of memory).
int linux_try_threads(int count);
/// The size of a thread's stack with its guard, in bytes.
size_t linux_thread_size(void);
/// Maps `length` bytes and unmaps them, untouched. Returns 0, or the errno that pthread_create(3) and malloc(3) would
/// get.
int linux_try_memory(size_t length);
/// mallopt(3): threads that have allocated nothing so far share the first arena with all others.
void linux_use_one_arena(void);
/// malloc_trim(3): whole free pages of the heap go back to the kernel. Takes up to a millisecond for each 2 MiB, and
/// holds the heap's lock meanwhile.
void linux_trim_heap(void);

/// struct termios2 of ioctl_tty(2).
struct linux_termios {
  uint32_t iflag, oflag, cflag, lflag;  // cflag without the rate bits
  uint32_t input_rate, output_rate;     // bits per second, any number
  uint8_t min, time, start, stop;       // c_cc[VMIN], [VTIME], [VSTART], [VSTOP]
  uint8_t discipline, others[19];       // c_line and the rest of c_cc, as linux_tcgets2 has read them
};
/// TCGETS2. ENOTTY: not a terminal.
int linux_tcgets2(int fd, struct linux_termios *modes);
/// TCSETS2, at once. `modes` comes from linux_tcgets2, and a caller changes what it means to. Drivers may round or ignore
/// settings without an error: read them back.
int linux_tcsets2(int fd, const struct linux_termios *modes);
/// A driver's counters of a line (TIOCGICOUNT of ioctl_tty(2)); each wraps around.
struct linux_line_counts {
  uint32_t breaks, framing, parity, overruns, buffer_overruns;
  uint32_t cts, dsr, dcd, ri;  // changes of the modem's lines
};
/// ENOTTY: the driver does not count.
int linux_count_line(int fd, struct linux_line_counts *counts);
/// Starts a thread that waits for changes of CTS, DSR, DCD and RI (TIOCMIWAIT of ioctl_tty(2)). It writes to the
/// eventfd(2) `bell` after each change, and once more after 5 ms, in which no further one is waited for. It ends by
/// itself if the driver can't wait, or if the port is gone. Both descriptors must stay open until linux_end_modem_wait returns. Call that once for each
/// started thread.
int linux_start_modem_wait(int fd, int bell, pthread_t *thread);
void linux_end_modem_wait(pthread_t thread);
/// ASYNC_LOW_LATENCY by TIOCGSERIAL and TIOCSSERIAL: received bytes arrive at once, not every 16 ms. Does nothing if
/// the flag is already as wanted.
int linux_set_low_latency(int fd, int on);

/// struct serial_rs485 of the kernel's Documentation/driver-api/serial/serial-rs485.rst, as far as we set it.
struct linux_rs485 {
  int on, rts_on_send, rts_after_send;
  uint32_t milliseconds_before, milliseconds_after;  // between RTS and the bits
};
/// TIOCGRS485. ENOTTY: the driver has no such mode.
int linux_get_rs485(int fd, struct linux_rs485 *mode);
/// TIOCSRS485; settings that `mode` does not hold stay. Drivers may change unsupported settings without an error: read
/// them back.
int linux_set_rs485(int fd, const struct linux_rs485 *mode);

#endif
