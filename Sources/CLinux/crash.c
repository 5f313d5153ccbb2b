#include "CLinux.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

// Everything that the handler reports is collected when it is installed. A handler may make only async-signal-safe
// calls (signal-safety(7)), and the process's memory may be the very thing that is broken.

struct module {
  uintptr_t base, begin, end;  // where it was loaded; where its code is
  char name[32];
};

// Enough for the libraries of a release. An offset in any further one is reported as "of no module".
static struct module modules[24];
static int module_count;
static char build_id[2 * 32 + 1] = "unknown";
static char version[64];

static void copy_text(char *to, size_t capacity, const char *from) {
  size_t length = strnlen(from, capacity - 1);
  memcpy(to, from, length);
  to[length] = 0;
}

static void read_build_id(const char *notes, size_t length) {
  static const char digits[] = "0123456789abcdef";
  size_t offset = 0;
  while (offset + sizeof(ElfW(Nhdr)) <= length) {
    const ElfW(Nhdr) *note = (const void *)(notes + offset);
    const char *name = notes + offset + sizeof *note;
    const unsigned char *text = (const void *)(name + ((note->n_namesz + 3) & ~3u));
    if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && memcmp(name, "GNU", 4) == 0) {
      size_t count = note->n_descsz < sizeof build_id / 2 ? note->n_descsz : sizeof build_id / 2;
      for (size_t i = 0; i < count; i++) {
        build_id[2 * i] = digits[text[i] >> 4];
        build_id[2 * i + 1] = digits[text[i] & 15];
      }
      build_id[2 * count] = 0;
      return;
    }
    offset += sizeof *note + ((note->n_namesz + 3) & ~3u) + ((note->n_descsz + 3) & ~3u);
  }
}

// The first module is the program; the others are libraries.
static int note_module(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size, (void)unused;
  if (module_count == sizeof modules / sizeof *modules) return 1;
  struct module *module = &modules[module_count];
  module->base = info->dlpi_addr;
  module->begin = UINTPTR_MAX;
  module->end = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
      if (begin < module->begin) module->begin = begin;
      if (begin + part->p_memsz > module->end) module->end = begin + part->p_memsz;
    }
    if (part->p_type == PT_NOTE && module_count == 0) read_build_id((const char *)begin, part->p_memsz);
  }
  const char *slash = strrchr(info->dlpi_name, '/');
  copy_text(module->name, sizeof module->name, module_count == 0 ? "baudway" : slash ? slash + 1 : info->dlpi_name);
  module_count++;
  return 0;
}

struct line {
  char text[512];
  size_t length;
};

static void put(struct line *line, const char *text) {
  size_t length = strnlen(text, sizeof line->text - line->length);
  memcpy(line->text + line->length, text, length);
  line->length += length;
}

static void put_offset(struct line *line, uintptr_t offset) {
  char digits[2 * sizeof offset + 3], *end = digits + sizeof digits;
  *--end = 0;
  do {
    *--end = "0123456789abcdef"[offset & 15];
    offset >>= 4;
  } while (offset);
  *--end = 'x';
  *--end = '0';
  put(line, end);
}

static const char *name_of(int number) {
  switch (number) {
  case SIGILL: return "SIGILL";
  case SIGTRAP: return "SIGTRAP";
  case SIGSEGV: return "SIGSEGV";
  case SIGBUS: return "SIGBUS";
  case SIGABRT: return "SIGABRT";
  default: return "SIGFPE";
  }
}

// Adds stack words that look like addresses in the program: after a fault in a library, they are its callers. The
// kernel reads the stack, since the stack may be what is broken. Searches 16 KiB of it for up to six addresses, for
// which the line has room.
static void put_callers(struct line *line, uintptr_t stack) {
  uintptr_t words[256];
  struct iovec here = {words, sizeof words};
  int found = 0;
  for (int part = 0; part < 8 && found < 6; part++, stack += sizeof words) {
    struct iovec there = {(void *)stack, sizeof words};
    ssize_t length = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    for (ssize_t i = 0; i < length / (ssize_t)sizeof *words && found < 6; i++) {
      if (words[i] < modules[0].begin || words[i] >= modules[0].end) continue;
      put(line, found++ ? " " : "; on the stack: ");
      put_offset(line, words[i] - modules[0].base);
    }
    if (length < (ssize_t)sizeof words) return;
  }
}

static void report(int number, siginfo_t *info, void *context) {
  int error = errno;
#if defined(__x86_64__)
  const greg_t *registers = ((const ucontext_t *)context)->uc_mcontext.gregs;
  uintptr_t counter = (uintptr_t)registers[REG_RIP], stack = (uintptr_t)registers[REG_RSP];
#elif defined(__aarch64__)
  const mcontext_t *registers = &((const ucontext_t *)context)->uc_mcontext;
  uintptr_t counter = registers->pc, stack = registers->sp;
#else
  uintptr_t counter = 0, stack = (uintptr_t)&error;
#endif
  struct line line = {.length = 0};
  put(&line, "baudway: ended by ");
  put(&line, name_of(number));
  put(&line, " at offset ");
  const struct module *where = NULL;
  for (int i = 0; i < module_count && !where; i++)
    if (counter >= modules[i].begin && counter < modules[i].end) where = &modules[i];
  put_offset(&line, where ? counter - where->base : counter);
  put(&line, " of ");
  put(&line, where ? where->name : "no module");
  put_callers(&line, stack);
  put(&line, "; version ");
  put(&line, version);
  put(&line, ", build ");
  put(&line, build_id);
  put(&line, "\n");
  // Standard error may have no reader any more. The line is shorter than PIPE_BUF, so write(2) does not wait if poll(2)
  // finds room.
  struct pollfd errors = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&errors, 1, 1000) == 1 && (errors.revents & POLLOUT)) (void)!write(STDERR_FILENO, line.text, line.length);
  errno = error;
  // The signal has its default effect again (SA_RESETHAND). A fault happens again when this returns; a signal that was
  // sent does not.
  if (info->si_code <= 0) raise(number);
}

int linux_report_crashes(const char *our_version) {
  static char own_stack[64 << 10];
  copy_text(version, sizeof version, our_version);
  dl_iterate_phdr(note_module, NULL);
  // The handler needs a stack of its own when a stack overflows. Each thread would need one; this one is the main
  // thread's.
  stack_t stack = {.ss_sp = own_stack, .ss_size = sizeof own_stack};
  if (sigaltstack(&stack, NULL) < 0) return -1;
  struct sigaction action = {.sa_sigaction = report, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND};
  sigemptyset(&action.sa_mask);
  static const int numbers[] = {SIGILL, SIGTRAP, SIGSEGV, SIGBUS, SIGABRT, SIGFPE};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (sigaction(numbers[i], &action, NULL) < 0) return -1;
  return 0;
}
