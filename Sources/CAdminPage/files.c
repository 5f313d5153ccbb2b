// The files of the admin listener's page, in the binary. The compiler notes them as inputs of this file, so a change of
// one is built in.

#include "CAdminPage.h"

#pragma clang diagnostic ignored "-Wc23-extensions"

static const unsigned char api_js[] = {
#embed "page/api.js"
};
static const unsigned char channel_js[] = {
#embed "page/channel.js"
};
static const unsigned char devices_js[] = {
#embed "page/devices.js"
};
static const unsigned char dialogs_js[] = {
#embed "page/dialogs.js"
};
static const unsigned char dom_js[] = {
#embed "page/dom.js"
};
static const unsigned char format_js[] = {
#embed "page/format.js"
};
static const unsigned char icon_svg[] = {
#embed "page/icon.svg"
};
static const unsigned char index_html[] = {
#embed "page/index.html"
};
static const unsigned char live_js[] = {
#embed "page/live.js"
};
static const unsigned char log_js[] = {
#embed "page/log.js"
};
static const unsigned char main_js[] = {
#embed "page/main.js"
};
static const unsigned char modules_js[] = {
#embed "page/modules.js"
};
static const unsigned char problems_js[] = {
#embed "page/problems.js"
};
static const unsigned char route_js[] = {
#embed "page/route.js"
};
static const unsigned char routes_js[] = {
#embed "page/routes.js"
};
static const unsigned char screen_js[] = {
#embed "page/screen.js"
};
static const unsigned char state_js[] = {
#embed "page/state.js"
};
static const unsigned char style_css[] = {
#embed "page/style.css"
};
static const unsigned char terminal_js[] = {
#embed "page/terminal.js"
};
static const unsigned char table_js[] = {
#embed "page/table.js"
};

static const char html[] = "text/html; charset=utf-8";
static const char style[] = "text/css; charset=utf-8";
static const char script[] = "text/javascript; charset=utf-8";
static const char image[] = "image/svg+xml";

static const struct admin_page_file files[] = {
    {"/", html, index_html, sizeof index_html},
    {"/page/api.js", script, api_js, sizeof api_js},
    {"/page/channel.js", script, channel_js, sizeof channel_js},
    {"/page/devices.js", script, devices_js, sizeof devices_js},
    {"/page/dialogs.js", script, dialogs_js, sizeof dialogs_js},
    {"/page/dom.js", script, dom_js, sizeof dom_js},
    {"/page/format.js", script, format_js, sizeof format_js},
    {"/page/icon.svg", image, icon_svg, sizeof icon_svg},
    {"/page/live.js", script, live_js, sizeof live_js},
    {"/page/log.js", script, log_js, sizeof log_js},
    {"/page/main.js", script, main_js, sizeof main_js},
    {"/page/modules.js", script, modules_js, sizeof modules_js},
    {"/page/problems.js", script, problems_js, sizeof problems_js},
    {"/page/route.js", script, route_js, sizeof route_js},
    {"/page/routes.js", script, routes_js, sizeof routes_js},
    {"/page/screen.js", script, screen_js, sizeof screen_js},
    {"/page/state.js", script, state_js, sizeof state_js},
    {"/page/style.css", style, style_css, sizeof style_css},
    {"/page/terminal.js", script, terminal_js, sizeof terminal_js},
    {"/page/table.js", script, table_js, sizeof table_js},
};

const struct admin_page_file *admin_page_file(size_t index) {
  return index < sizeof files / sizeof files[0] ? &files[index] : NULL;
}
