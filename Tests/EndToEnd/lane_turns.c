// Preloaded into the gateway: measures how long each lane is held. A lane calls epoll_wait(2) once in each round, so its
// processor time between two calls is one round's work; the time in which its thread waits for a processor does not count.
// SIGUSR2 adds to the file LANE_TURNS a line for each epoll set (its descriptor, the number of rounds, the longest one in
// nanoseconds) and the line "end". Then counting begins again.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 4096 };
static _Atomic unsigned long longest[MOST], rounds[MOST];
static int (*real)(int, struct epoll_event *, int, int);
static _Thread_local int held = -1;  // the epoll set whose round this thread runs
static _Thread_local unsigned long since;

static unsigned long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1000000000ul + time.tv_nsec;
}

int epoll_wait(int set, struct epoll_event *events, int most, int milliseconds) {
  if (held == set && set >= 0 && set < MOST) {
    unsigned long spent = now() - since, known = atomic_load(&longest[set]);
    while (spent > known && !atomic_compare_exchange_weak(&longest[set], &known, spent)) {
    }
    atomic_fetch_add(&rounds[set], 1);
  }
  int count = real(set, events, most, milliseconds);
  // After a wait without an event a lane returns to Dispatch, which may give the thread other work.
  held = count <= 0 && milliseconds != 0 ? -1 : set;
  since = now();
  return count;
}

static void report(int number) {
  (void)number;
  int file = open(getenv("LANE_TURNS"), O_WRONLY | O_CREAT | O_APPEND, 0600);
  for (int set = 0; set < MOST; set++) {
    unsigned long count = atomic_exchange(&rounds[set], 0), most = atomic_exchange(&longest[set], 0);
    if (count) dprintf(file, "%d %lu %lu\n", set, count, most);
  }
  dprintf(file, "end\n");
  close(file);
}

__attribute__((constructor)) static void begin(void) {
  real = (int (*)(int, struct epoll_event *, int, int))dlsym(RTLD_NEXT, "epoll_wait");
  signal(SIGUSR2, report);
}
