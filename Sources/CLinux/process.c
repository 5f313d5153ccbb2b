#include "CLinux.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// The descriptors are moved above the standard ones first. A process started without standard descriptors may have got
// these under their numbers. One dup2 would then destroy what the next one needs.
static int set_streams(posix_spawn_file_actions_t *actions, int stream, int errors, const char *terminal) {
  int result;
  if (terminal) {
    // The first terminal that a session leader opens is its controlling terminal.
    if ((result = posix_spawn_file_actions_addopen(actions, 0, terminal, O_RDWR, 0))) return result;
    if ((result = posix_spawn_file_actions_adddup2(actions, 0, 1))) return result;
    if ((result = posix_spawn_file_actions_adddup2(actions, 0, 2))) return result;
  } else {
    if ((result = posix_spawn_file_actions_adddup2(actions, stream, 0))) return result;
    if ((result = posix_spawn_file_actions_adddup2(actions, stream, 1))) return result;
    if ((result = posix_spawn_file_actions_adddup2(actions, errors, 2))) return result;
  }
  // Descriptors that we inherited, or that a library has opened, may not be close-on-exec.
  return posix_spawn_file_actions_addclosefrom_np(actions, 3);
}

static int set_attributes(posix_spawnattr_t *attributes, int has_terminal) {
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  int result;
  short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
  flags |= has_terminal ? POSIX_SPAWN_SETSID : POSIX_SPAWN_SETPGROUP;
  if ((result = posix_spawnattr_setsigmask(attributes, &none))) return result;
  if ((result = posix_spawnattr_setsigdefault(attributes, &all))) return result;
  if ((result = posix_spawnattr_setpgroup(attributes, 0))) return result;
  return posix_spawnattr_setflags(attributes, flags);
}

int linux_spawn(
  pid_t *pid, const char *path, char *const arguments[], char *const environment[], int stream, int errors,
  const char *terminal) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  int moved_stream = -1, moved_errors = -1, result;
  if (!terminal) {
    moved_stream = fcntl(stream, F_DUPFD_CLOEXEC, 3);
    moved_errors = fcntl(errors, F_DUPFD_CLOEXEC, 3);
    if (moved_stream < 0 || moved_errors < 0) {
      result = errno;
      goto close;
    }
  }
  if ((result = posix_spawn_file_actions_init(&actions))) goto close;
  if ((result = posix_spawnattr_init(&attributes))) goto destroy_actions;
  if (!(result = set_streams(&actions, moved_stream, moved_errors, terminal)) &&
      !(result = set_attributes(&attributes, terminal != NULL)))
    result = posix_spawn(pid, path, &actions, &attributes, arguments, environment);
  posix_spawnattr_destroy(&attributes);
destroy_actions:
  posix_spawn_file_actions_destroy(&actions);
close:
  if (moved_stream >= 0) close(moved_stream);
  if (moved_errors >= 0) close(moved_errors);
  errno = result;
  return result ? -1 : 0;
}

int linux_pidfd(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

pid_t linux_ended_child(void) {
  siginfo_t info = {.si_pid = 0};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ? 0 : info.si_pid;
}

int linux_reap(pid_t pid, int *status, int *signal) {
  int how;
  pid_t ended = waitpid(pid, &how, WNOHANG);
  if (ended <= 0) return (int)ended;
  *status = WIFEXITED(how) ? WEXITSTATUS(how) : 0;
  *signal = WIFSIGNALED(how) ? WTERMSIG(how) : 0;
  return 1;
}

// <linux/pidfd.h> of Linux 6.15.
struct pidfd_info {
  uint64_t mask, cgroup;
  uint32_t pid, tgid, ppid, ids[8];
  int32_t exit_code;
};
#define PIDFD_GET_INFO _IOWR(0xFF, 11, struct pidfd_info)
#define PIDFD_INFO_EXIT (1ULL << 3)

int linux_pidfd_end(int pidfd, int *status, int *signal) {
  struct pidfd_info info = {.mask = PIDFD_INFO_EXIT};
  if (ioctl(pidfd, PIDFD_GET_INFO, &info) < 0) return -1;
  if (!(info.mask & PIDFD_INFO_EXIT)) return 0;
  *status = WIFEXITED(info.exit_code) ? WEXITSTATUS(info.exit_code) : 0;
  *signal = WIFSIGNALED(info.exit_code) ? WTERMSIG(info.exit_code) : 0;
  return 1;
}

int linux_ignores(int number) {
  struct sigaction action;
  return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

const char *linux_signal_name(int number) { return sigabbrev_np(number); }

int linux_pipe(int ends[2]) {
  if (pipe2(ends, O_CLOEXEC) < 0) return -1;
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0) return 0;
  int why = errno;
  close(ends[0]);
  close(ends[1]);
  errno = why;
  return -1;
}
