// Idle clients: connect, four bytes there and back, then silence with the connection open.
#include "load.h"

static void add_client(int port, uint32_t number) {
  uint32_t heard = 0;
  struct client client;  // stays open until the process ends
  client_open(&client, connect_to(port));
  client_write_all(&client, &number, sizeof number);
  client_read_all(&client, &heard, sizeof heard);
  if (heard != number) broken("client %u heard %u", number, heard);
}

void idle(int clients) {
  int port, endpoint = start_echo_server();
  hear_ports(endpoint, &port, 1);
  // The first client is there before and after, so its pages of code and first allocations do not count as growth.
  if (clients) add_client(port, UINT32_MAX);
  say("ready");
  hear("go");
  uint64_t begin = now_ns();
  for (int i = 0; i < clients; i++) add_client(port, (uint32_t)i);
  say("result clients=%d seconds=%.3f", clients, (double)(now_ns() - begin) / 1e9);
}
