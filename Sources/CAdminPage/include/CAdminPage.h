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

/// The style sheet of xterm.js; NULL where it was not installed when this was built.
const struct admin_page_file *admin_page_terminal_style(void);

/// A module of xterm.js, by CommonJS; its path is the name by which others require it. NULL when there are no more.
const struct admin_page_file *admin_page_terminal_module(size_t index);

#endif
