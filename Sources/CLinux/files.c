#include "CLinux.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int linux_open_path(int folder, const char *name) { return openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC); }

int linux_change_owner(int fd, uid_t user, gid_t group) { return fchownat(fd, "", user, group, AT_EMPTY_PATH); }

int linux_change_mode(int fd, mode_t mode) {
  if (fchmod(fd, mode) == 0) return 0;
  if (errno != EBADF) return -1;
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return chmod(path, mode);
}

int linux_exchange(int folder, const char *name, int other_folder, const char *other_name) {
  return renameat2(folder, name, other_folder, other_name, RENAME_EXCHANGE);
}

int linux_rename_new(int folder, const char *name, int to_folder, const char *to_name) {
  if (renameat2(folder, name, to_folder, to_name, RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return -1;
  if (linkat(folder, name, to_folder, to_name, 0) != 0) return -1;
  return unlinkat(folder, name, 0);
}
