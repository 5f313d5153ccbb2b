#include "CLinux.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <netinet/in.h>
#include <linux/tcp.h>

int linux_accept(int fd, struct sockaddr *address, socklen_t *length) {
  return accept4(fd, address, length, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

int linux_socket(int domain, int type, int protocol) {
  return socket(domain, type | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol);
}

int linux_socketpair(int domain, int type, int ends[2]) {
  return socketpair(domain, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends);
}

// For emulated kernels (valgrind, gVisor), which do not support mremap of size zero; needs a descriptor for a moment.
static int mirror_through_file(char *memory, size_t length) {
  int file = memfd_create("ring", MFD_CLOEXEC);
  if (file < 0) return -1;
  int result = ftruncate(file, (off_t)length);
  for (int half = 0; half < 2 && result == 0; half++) {
    void *start = memory + half * length;
    if (mmap(start, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) result = -1;
  }
  int why = errno;
  close(file);
  errno = why;
  return result;
}

void *linux_map_mirrored(size_t length) {
  char *memory = mmap(NULL, 2 * length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return NULL;
  // mremap(2): an old size of zero on a shareable mapping makes a second mapping of the same pages.
  if (mremap(memory, 0, length, MREMAP_MAYMOVE | MREMAP_FIXED, memory + length) != MAP_FAILED) return memory;
  if (errno == EINVAL && mirror_through_file(memory, length) == 0) return memory;
  int why = errno;
  munmap(memory, 2 * length);
  errno = why;
  return NULL;
}

void linux_unmap_mirrored(void *memory, size_t length) { munmap(memory, 2 * length); }

const char *linux_errno_name(int number) { return strerrorname_np(number); }

const char *linux_errno_text(int number) {
  const char *text = strerrordesc_np(number);
  return text ? text : "unknown error";
}

int linux_tcp_state(int fd, struct linux_tcp_state *state) {
  struct tcp_info info;
  socklen_t length = sizeof info;
  memset(&info, 0, sizeof info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0) return -1;
  state->unacknowledged = info.tcpi_unacked;
  state->probes = info.tcpi_probes;
  state->last_ack_milliseconds = info.tcpi_last_ack_recv;
  state->not_sent = info.tcpi_notsent_bytes;
  return 0;
}

int linux_open_pty(char *path, size_t capacity) {
  int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0) return -1;
  if (grantpt(master) == 0 && unlockpt(master) == 0 && ptsname_r(master, path, capacity) == 0 &&
      fcntl(master, F_SETFL, O_NONBLOCK) == 0)
    return master;
  int why = errno;
  close(master);
  errno = why;
  return -1;
}

int linux_open_peer(int master) {
  int flags = O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC;
  int slave = ioctl(master, TIOCGPTPEER, flags);
  char path[64];
  // An emulated kernel (gVisor) does not support TIOCGPTPEER: open the slave by its name.
  if (slave < 0 && (errno == ENOTTY || errno == EINVAL) && ptsname_r(master, path, sizeof path) == 0)
    slave = open(path, flags);
  return slave;
}

int linux_peer_process(int fd, pid_t *process, uid_t *user) {
  struct ucred peer;
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) < 0) return -1;
  *process = peer.pid;
  *user = peer.uid;
  return 0;
}

int linux_peer_user(int fd, uid_t *user) {
  pid_t process;
  return linux_peer_process(fd, &process, user);
}
