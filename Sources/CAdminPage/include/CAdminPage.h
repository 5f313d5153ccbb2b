#ifndef CADMINPAGE_H
#define CADMINPAGE_H

#include <stddef.h>

/// A file of the admin listener's page, as it is in the folder "page" of this target.
struct admin_page_file {
  /// Of its URL.
  const char *path;
  const char *type;
  const unsigned char *bytes;
  size_t count;
};

/// NULL when there are no more.
const struct admin_page_file *admin_page_file(size_t index);

#endif
