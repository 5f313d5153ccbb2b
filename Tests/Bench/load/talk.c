// The lines between the load generator and its driver, and the clock.
#include "load.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void say_line(const char *prefix, const char *format, va_list arguments) {
  printf("%s", prefix);
  vprintf(format, arguments);
  printf("\n");
  fflush(stdout);
}

void say(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say_line("", format, arguments);
  va_end(arguments);
}

void broken(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say_line("broken ", format, arguments);
  _exit(1);
}

void failed(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  say_line("failed ", format, arguments);
  _exit(1);
}

char *hear(const char *word) {
  static char line[16 * 1024];
  if (!fgets(line, sizeof line, stdin)) _exit(1);  // the driver has ended
  line[strcspn(line, "\n")] = 0;
  size_t length = strlen(word);
  if (strncmp(line, word, length)) failed("expected '%s', heard '%s'", word, line);
  return line + length + (line[length] == ' ');
}

uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}
