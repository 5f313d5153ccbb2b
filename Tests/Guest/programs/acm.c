// A CDC ACM modem, as a function of FunctionFS: the far end of a /dev/ttyACM* in the same machine. Unlike the kernel's
// own (f_acm), it sends each bit of SERIAL_STATE and prints what the port's driver requests.
//
//   acm FOLDER      FunctionFS is mounted there; "ready": a gadget with the function may be bound now. The modem is
//                   unplugged when the program ends.
//
// Its input, a command per line:
//   state BITS      SERIAL_STATE (PSTN120 6.5.4), in hexadecimal: 1 DCD, 2 DSR, 4 break, 8 RI, 10 framing, 20 parity,
//                   40 overrun. Sent when the port is open.
//   send HEX        bytes for the port
//   echo on|off     bytes of the port go back to it; otherwise they are printed
//
// Its output, a line per event, with the seconds of CLOCK_MONOTONIC:
//   TIME coding BAUD DATA PARITY STOP     TIME lines DTR RTS     TIME data HEX

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/usb/cdc.h>
#include <linux/usb/functionfs.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PACKET = 512 };  // of a bulk endpoint at high speed; a longer read would wait for more than one packet

// FunctionFS of 6.1 accepts no functional descriptors of CDC. So the gadget needs the IDs of a modem that cdc_acm knows
// to have none; its interfaces 0 and 1 are control and data, and it cannot send breaks. Numbers of USB are little
// endian, as those of this machine.
static const struct {
  struct usb_functionfs_descs_head_v2 head;
  __le32 count;
  struct usb_interface_descriptor control;
  struct usb_endpoint_descriptor_no_audio notify;
  struct usb_interface_descriptor data;
  struct usb_endpoint_descriptor_no_audio in, out;
} __attribute__((packed)) descriptors = {
  {FUNCTIONFS_DESCRIPTORS_MAGIC_V2, sizeof descriptors, FUNCTIONFS_HAS_HS_DESC}, 5,
  {USB_DT_INTERFACE_SIZE, USB_DT_INTERFACE, 0, 0, 1, USB_CLASS_COMM, USB_CDC_SUBCLASS_ACM, 1, 0},
  {USB_DT_ENDPOINT_SIZE, USB_DT_ENDPOINT, USB_DIR_IN | 1, USB_ENDPOINT_XFER_INT, 16, 4},  // each ms
  {USB_DT_INTERFACE_SIZE, USB_DT_INTERFACE, 1, 0, 2, USB_CLASS_CDC_DATA, 0, 0, 0},
  {USB_DT_ENDPOINT_SIZE, USB_DT_ENDPOINT, USB_DIR_IN | 2, USB_ENDPOINT_XFER_BULK, PACKET, 0},
  {USB_DT_ENDPOINT_SIZE, USB_DT_ENDPOINT, USB_DIR_OUT | 3, USB_ENDPOINT_XFER_BULK, PACKET, 0},
};
static const struct usb_functionfs_strings_head no_strings = {
  FUNCTIONFS_STRINGS_MAGIC, sizeof no_strings, 0, 0};

static int control, notify, in, out;
static volatile int echoes;

// The name is relative to the folder of FunctionFS.
static int endpoint(const char *name) {
  int descriptor = open(name, O_RDWR | O_CLOEXEC);
  if (descriptor < 0) perror(name), exit(1);
  return descriptor;
}

// One line, in one write: threads print.
__attribute__((format(printf, 1, 2))) static void event(const char *format, ...) {
  char line[2 * PACKET + 64];
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int size = snprintf(line, sizeof line, "%ld.%06ld ", (long)now.tv_sec, now.tv_nsec / 1000);
  va_list values;
  va_start(values, format);
  size += vsnprintf(line + size, sizeof line - (size_t)size, format, values);
  va_end(values);
  line[size++] = '\n';
  if (write(STDOUT_FILENO, line, (size_t)size) < 0) exit(1);
}

// Until the host has taken all of it. An endpoint fails while the modem is not configured; then it is dropped.
static void send_bytes(int to, const void *bytes, size_t size) {
  if (write(to, bytes, size) < 0) perror("acm: write");
}

static void *read_port(void *unused) {
  unsigned char bytes[PACKET];
  char hex[2 * PACKET + 1];
  for (;;) {
    ssize_t size = read(out, bytes, sizeof bytes);
    if (size < 0 && errno != ESHUTDOWN && errno != EINTR) return perror("acm: read"), unused;
    if (size > 0 && echoes) {
      send_bytes(in, bytes, (size_t)size);
    } else if (size > 0) {
      for (ssize_t at = 0; at < size; at++) sprintf(hex + 2 * at, "%02x", bytes[at]);
      event("data %s", hex);
    }
  }
}

static void obey(char *command) {
  unsigned char bytes[2 * PACKET];
  unsigned number;
  size_t size = 0;
  if (sscanf(command, "state %x", &number) == 1) {
    struct { struct usb_cdc_notification head; __le16 state; } __attribute__((packed)) message = {
      {USB_DIR_IN | USB_TYPE_CLASS | USB_RECIP_INTERFACE, USB_CDC_NOTIFY_SERIAL_STATE, 0, 0, 2}, number};
    send_bytes(notify, &message, sizeof message);
  } else if (strncmp(command, "send ", 5) == 0) {
    for (char *at = command + 5; size < sizeof bytes && sscanf(at, "%2x", &number) == 1; at += 2)
      bytes[size++] = (unsigned char)number;
    send_bytes(in, bytes, size);
  } else {
    echoes = strcmp(command, "echo on\n") == 0;
  }
}

static void *read_commands(void *unused) {
  char *line = NULL;
  for (size_t room = 0; getline(&line, &room, stdin) > 0;) obey(line);
  return unused;
}

// A request of the port's driver. It waits for the answer.
static void answer(const struct usb_ctrlrequest *request) {
  static struct usb_cdc_line_coding coding = {0};
  unsigned value = request->wValue;
  switch (request->bRequest) {
  case USB_CDC_REQ_SET_LINE_CODING:
    if (read(control, &coding, sizeof coding) != sizeof coding) return perror("acm: coding");
    static const char *const parities[] = {"none", "odd", "even", "mark", "space"}, *const stops[] = {"1", "1.5", "2"};
    event("coding %u %d %s %s", coding.dwDTERate, coding.bDataBits, parities[coding.bParityType % 5],
      stops[coding.bCharFormat % 3]);
    return;
  case USB_CDC_REQ_GET_LINE_CODING: return send_bytes(control, &coding, sizeof coding);
  case USB_CDC_REQ_SET_CONTROL_LINE_STATE: event("lines %u %u", value & 1, value >> 1 & 1); break;
  default:  // a transfer in the wrong direction refuses it
    if (request->bRequestType & USB_DIR_IN ? read(control, NULL, 0) : write(control, NULL, 0)) {}
    return;
  }
  if (read(control, NULL, 0) < 0) perror("acm: acknowledge");
}

int main(int count, char **words) {
  if (count != 2 || chdir(words[1]) < 0) return fprintf(stderr, "acm FOLDER\n"), 64;
  control = endpoint("ep0");
  if (write(control, &descriptors, sizeof descriptors) < 0 || write(control, &no_strings, sizeof no_strings) < 0)
    return perror("acm: descriptors"), 1;
  notify = endpoint("ep1");
  in = endpoint("ep2");
  out = endpoint("ep3");
  pthread_t reader, commander;
  pthread_create(&reader, NULL, read_port, NULL);
  pthread_create(&commander, NULL, read_commands, NULL);
  event("ready");
  struct usb_functionfs_event happened;
  while (read(control, &happened, sizeof happened) > 0)
    if (happened.type == FUNCTIONFS_SETUP) answer(&happened.u.setup);
  return perror("acm: ep0"), 1;
}
