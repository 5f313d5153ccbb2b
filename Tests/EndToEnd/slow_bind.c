// Preloaded into the gateway: adds 20 ms after each bind(2) of a unix socket, so that an attacker can hit the moment
// between bind and chmod.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

int bind(int descriptor, const struct sockaddr *address, socklen_t length) {
  static int (*real)(int, const struct sockaddr *, socklen_t);
  if (!real) real = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
  int result = real(descriptor, address, length);
  if (result == 0 && address->sa_family == AF_UNIX) usleep(20000);
  return result;
}
