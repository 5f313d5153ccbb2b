// Arguments of the load generator; load.h explains them.
#include "load.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

int main(int argc, char **argv) {
  // Both ends of 9,900 paths are in this process.
  struct rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  signal(SIGPIPE, SIG_IGN);
  // The driver relies on an end, whatever hangs.
  alarm(120);
  pattern_prepare();

  if (argc > 2 && !strcmp(argv[1], "--transport")) {
    transport_named(argv[2]);
    argc -= 2, argv += 2;
  }
  const char *what = argc > 1 ? argv[1] : "";
  if (!strcmp(what, "bulk") && argc == 6)
    bulk(kind_named(argv[2]), atoi(argv[3]), argv[4], atof(argv[5]));
  else if (!strcmp(what, "rounds") && argc == 6)
    rounds(kind_named(argv[2]), strtoul(argv[3], NULL, 10), atof(argv[4]), atol(argv[5]));
  else if (!strcmp(what, "accepts") && argc == 4)
    accepts(atof(argv[2]), atoi(argv[3]));
  else if (!strcmp(what, "handshakes") && argc == 5)
    handshakes(!strcmp(argv[2], "resumed"), atof(argv[3]), atoi(argv[4]));
  else if (!strcmp(what, "idle") && argc == 3)
    idle(atoi(argv[2]));
  else if (!strcmp(what, "start") && argc == 3)
    start(atoi(argv[2]));
  else if (!strcmp(what, "baud") && argc == 4)
    baud(atof(argv[2]), atol(argv[3]));
  else
    failed("usage: see load.h");
  hear("done");
  // Not exit(): the other thread may still be working, and the kernel closes everything.
  _exit(0);
}
