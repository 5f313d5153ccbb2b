// What every byte must be, by stream and position; made once, so sending costs nothing and checking is one memcmp.
#include "load.h"

#include <string.h>

enum { PERIOD = 65521 };  // the largest prime below 64 KiB

static unsigned char pattern[PERIOD + CHUNK];

void pattern_prepare(void) {
  uint32_t state = 2463534242u;  // xorshift32 (Marsaglia)
  for (int i = 0; i < PERIOD; i++) {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    pattern[i] = (unsigned char)(state >> 24);
  }
  for (int i = 0; i < CHUNK; i++) pattern[PERIOD + i] = pattern[i];  // runs on: CHUNK is longer than a period
}

void pattern_without_iac(void) {
  for (int i = 0; i < PERIOD + CHUNK; i++)
    if (pattern[i] == 0xff) pattern[i] = 0xfe;
}

const unsigned char *pattern_at(uint32_t stream, uint64_t position) {
  return pattern + (position + stream * 7919u) % PERIOD;
}

void pattern_check(uint32_t stream, uint64_t position, const unsigned char *bytes, size_t count) {
  const unsigned char *right = pattern_at(stream, position);
  if (!memcmp(right, bytes, count)) return;
  size_t at = 0;
  while (bytes[at] == right[at]) at++;
  broken("stream %u: byte %llu is %02x, not %02x", stream, (unsigned long long)(position + at), bytes[at], right[at]);
}
