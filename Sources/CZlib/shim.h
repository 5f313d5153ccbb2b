#include <zlib.h>

// inflateInit2 and deflateInit2 are macros, which Swift does not import.
static inline int zlib_raw_inflate_init(z_stream *stream, int window_bits) {
  return inflateInit2(stream, -window_bits);
}
static inline int zlib_raw_deflate_init(z_stream *stream, int level, int window_bits, int memory_level) {
  return deflateInit2(stream, level, Z_DEFLATED, -window_bits, memory_level, Z_DEFAULT_STRATEGY);
}
// 16 more window bits ask for gzip's form (RFC 1952).
static inline int zlib_gzip_init(z_stream *stream, int level) {
  return deflateInit2(stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
}
