/* The load generator: keep-alive HTTP/1.1 on loopback, as many requests in flight as connections, one thread, epoll.
 *
 * It shares the cores with the server and PostgreSQL, so what it does not use is theirs: a request is a template filled
 * in, an answer is looked through once, and nothing is allocated on the way.
 *
 * stdin: lines of "name value" (the fields of struct plan; load.py explains them), an empty line, then the raw request.
 * In the request, "%(key)d" is the next key of the connection's walk, "%(same)d" the key before it once more, "%(token)d"
 * the token, "%(caller)d" one of the lines "caller", in turn a connection. stdout: a Result of load.py as JSON. It ends by itself: when the time is up nothing more is sent, and
 * outstanding answers are waited for, so that every request has a known end.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

enum { PIECES = 1024, ANSWER = 1 << 17, REQUEST = 1 << 17, EVENTS = 256, STATUSES = 600, CALLERS = 1024 };

struct plan {
  int64_t port, connections, first_token, rising, expected_status, first_key, rows, stride;
  double warmup, seconds, drained_within;
  char expected_text[256];
};

struct piece { /* literal text, then what is filled in behind it */
  const char *text;
  size_t length;
  char filled; /* 'k' next key, 's' same key, 't' token, 'c' caller, 0 nothing */
};

struct connection {
  int socket;
  bool open;
  int64_t number, step, token, walked; /* walked: keys used before this request */
  double sent;
  size_t got;
  char *answer;
};

enum fault { NOT_UNDERSTOOD, MORE_THAN_ONE, LOST, WITHOUT_TEXT, NEVER_CAME, FAULTS };
static const char *const fault_names[FAULTS] = {
    "answer that is not understood", "more than one answer", "connection lost", "answer without the expected text",
    "connections whose last answer never came"};

static struct plan plan;
static struct piece pieces[PIECES];
static int piece_count, keys_per_request, caller_count;
static char *callers[CALLERS];
static int64_t share; /* rows of each connection */
static double measured_from, ends_at;
static double *latencies;
static size_t latency_count, latency_room;
static int64_t *last_tokens; /* by key; 0 = none accepted */
static size_t token_room;
static int64_t statuses[STATUSES], faults[FAULTS], accepted, still_open;

static void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
  exit(1);
}

static double now_on(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Make room for one more element at `index`; new room is zeroed. */
static void *grown(void *array, size_t *room, size_t index, size_t size) {
  if (index < *room) return array;
  size_t more = index * 2 + (1 << 16);
  if ((array = realloc(array, more * size)) == NULL) fail("out of memory");
  memset((char *)array + *room * size, 0, (more - *room) * size);
  *room = more;
  return array;
}

/* row_key of walk.py, less the first key. */
static int64_t row_index(int64_t connection, int64_t step) {
  return connection + plan.connections * (step * plan.stride % share);
}

static void read_plan(void) {
  const struct { const char *name; int64_t *integer; double *real; } fields[] = {
      {"port", &plan.port, NULL}, {"connections", &plan.connections, NULL}, {"first_token", &plan.first_token, NULL},
      {"rising", &plan.rising, NULL}, {"expected_status", &plan.expected_status, NULL}, {"rows", &plan.rows, NULL},
      {"first_key", &plan.first_key, NULL}, {"stride", &plan.stride, NULL}, {"warmup", NULL, &plan.warmup},
      {"seconds", NULL, &plan.seconds}, {"drained_within", NULL, &plan.drained_within}};
  const size_t count = sizeof fields / sizeof *fields;
  char line[2048];
  while (fgets(line, sizeof line, stdin) != NULL && line[0] != '\n') {
    line[strcspn(line, "\n")] = 0;
    char *value = strchr(line, ' ');
    if (value == NULL) fail("no value: %s", line);
    *value++ = 0;
    size_t i = 0;
    while (i < count && strcmp(fields[i].name, line) != 0) i++;
    if (i < count && fields[i].integer != NULL) *fields[i].integer = strtoll(value, NULL, 10);
    else if (i < count) *fields[i].real = strtod(value, NULL);
    else if (strcmp(line, "expected_text") == 0) snprintf(plan.expected_text, sizeof plan.expected_text, "%s", value);
    else if (strcmp(line, "caller") == 0 && caller_count < CALLERS) callers[caller_count++] = strdup(value);
    else fail("no such field: %s", line);
  }
  share = plan.connections > 0 ? plan.rows / plan.connections : 0;
  if (share < 1 || plan.stride < 1) fail("each connection needs a row");
}

static void read_request(void) {
  static char request[REQUEST];
  size_t length = fread(request, 1, sizeof request - 1, stdin);
  if (length == sizeof request - 1) fail("the request is too long");
  const char *text = request;
  for (char *mark; (mark = strstr(text, "%(")) != NULL; text = strstr(mark, ")d") + 2) {
    if (strstr(mark, ")d") == NULL || strchr("ksct", mark[2]) == NULL) fail("not to be filled in: %.20s", mark);
    if (piece_count == PIECES - 1) fail("more than %d parts to fill in", PIECES - 1);
    pieces[piece_count++] = (struct piece){text, (size_t)(mark - text), mark[2]};
    keys_per_request += mark[2] == 'k';
  }
  pieces[piece_count++] = (struct piece){text, strlen(text), 0};
  if (strstr(request, "%(c") != NULL && caller_count == 0) fail("no caller");
}

static void send_next(struct connection *one) {
  static char out[REQUEST + PIECES * 20 + 2048];
  size_t length = 0;
  int64_t key = 0, taken = 0;
  one->walked = one->step * keys_per_request;
  one->step++;
  one->token = plan.rising ? plan.first_token + one->step : plan.first_token;
  for (int i = 0; i < piece_count; i++) {
    const struct piece *piece = &pieces[i];
    memcpy(out + length, piece->text, piece->length);
    length += piece->length;
    if (piece->filled == 0) continue;
    if (piece->filled == 'c') {
      length += (size_t)sprintf(out + length, "%s", callers[one->number % caller_count]);
      continue;
    }
    if (piece->filled == 'k') key = plan.first_key + row_index(one->number, one->walked + ++taken);
    length += (size_t)sprintf(out + length, "%" PRId64, piece->filled == 't' ? one->token : key);
  }
  one->got = 0;
  one->sent = now_on(CLOCK_MONOTONIC);
  for (size_t done = 0; done < length;) { /* the socket blocks: the answer before was whole, so its buffer is empty */
    ssize_t count = send(one->socket, out + done, length - done, MSG_NOSIGNAL);
    if (count < 0) return; /* the reading end sees it, too */
    done += (size_t)count;
  }
}

static void stop(struct connection *one) {
  close(one->socket);
  one->open = false;
  still_open--;
}

static void stop_with(struct connection *one, enum fault fault) {
  faults[fault]++;
  stop(one);
}

static void answered(const struct connection *one, int status, double now) {
  if (memmem(one->answer, one->got, plan.expected_text, strlen(plan.expected_text)) == NULL) faults[WITHOUT_TEXT]++;
  statuses[status]++;
  if (status == plan.expected_status && measured_from <= now && now < ends_at) {
    latencies = grown(latencies, &latency_room, latency_count, sizeof *latencies);
    latencies[latency_count++] = now - one->sent;
  }
  if (!plan.rising || status < 200 || status >= 300) return;
  accepted++;
  for (int64_t i = 1; i <= keys_per_request; i++) {
    size_t index = (size_t)row_index(one->number, one->walked + i);
    last_tokens = grown(last_tokens, &token_room, index, sizeof *last_tokens);
    last_tokens[index] = one->token;
  }
}

/* The length of the whole answer: -1 when its head is still to come, -2 when it is not understood. */
static int64_t whole_length(const struct connection *one, int *status) {
  const char *end = memmem(one->answer, one->got, "\r\n\r\n", 4);
  if (end == NULL) return one->got < ANSWER ? -1 : -2;
  if (strncmp(one->answer, "HTTP/1.1 ", 9) != 0) return -2;
  *status = atoi(one->answer + 9);
  if (*status < 100 || *status >= STATUSES) return -2;
  int64_t head = end - one->answer + 4;
  if (*status == 204) return head;
  for (const char *line = one->answer; line < end; line = strstr(line, "\r\n") + 2) {
    if (strncasecmp(line, "content-length:", 15) == 0) return head + strtoll(line + 15, NULL, 10);
    if (strncasecmp(line, "transfer-encoding: chunked", 26) != 0) continue;
    if (one->got >= 7 && memcmp(one->answer + one->got - 7, "\r\n0\r\n\r\n", 7) == 0) return (int64_t)one->got;
    return one->got < ANSWER ? -1 : -2;
  }
  return -2;
}

static void receive(struct connection *one) {
  ssize_t count = recv(one->socket, one->answer + one->got, ANSWER - one->got, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) { stop_with(one, LOST); return; }
  one->got += (size_t)count;
  one->answer[one->got] = 0; /* a byte more is allocated */
  int status = 0;
  int64_t length = whole_length(one, &status);
  if (length == -2 || length > ANSWER) { stop_with(one, NOT_UNDERSTOOD); return; }
  if (length == -1 || (int64_t)one->got < length) return;
  if ((int64_t)one->got > length) { stop_with(one, MORE_THAN_ONE); return; }
  double now = now_on(CLOCK_MONOTONIC);
  answered(one, status, now);
  if (now < ends_at) send_next(one);
  else stop(one);
}

static struct connection *connect_all(int poll) {
  struct connection *all = calloc((size_t)plan.connections, sizeof *all);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)plan.port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int64_t i = 0; i < plan.connections; i++) {
    int socket_ = socket(AF_INET, SOCK_STREAM, 0);
    if (socket_ < 0 || connect(socket_, (struct sockaddr *)&address, sizeof address) < 0)
      fail("cannot connect: %s", strerror(errno));
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    all[i] = (struct connection){.socket = socket_, .open = true, .number = i, .answer = malloc(ANSWER + 1)};
    epoll_ctl(poll, EPOLL_CTL_ADD, socket_, &(struct epoll_event){.events = EPOLLIN, .data.ptr = &all[i]});
  }
  still_open = plan.connections;
  return all;
}

static int ascending(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static double percentile_ms(double of_all) {
  if (latency_count == 0) return 0;
  size_t index = (size_t)(of_all * (double)latency_count);
  return latencies[index < latency_count ? index : latency_count - 1] * 1000;
}

static void print_counts(const char *name, const int64_t *counts, int length, const char *const *names) {
  printf("\"%s\": {", name);
  const char *between = "";
  for (int i = 0; i < length; i++) {
    if (counts[i] == 0) continue;
    if (names != NULL) printf("%s\"%s\": %" PRId64, between, names[i], counts[i]);
    else printf("%s\"%d\": %" PRId64, between, i, counts[i]);
    between = ", ";
  }
  printf("}, ");
}

static void print_result(double cpu) {
  if (latency_count > 0) qsort(latencies, latency_count, sizeof *latencies, ascending);
  int64_t rows = 0, token_sum = 0;
  for (size_t i = 0; i < token_room; i++) {
    rows += last_tokens[i] != 0;
    token_sum += last_tokens[i] != 0 ? last_tokens[i] - plan.first_token : 0;
  }
  printf("{\"rate\": %f, \"p50_ms\": %f, ", (double)latency_count / plan.seconds, percentile_ms(0.50));
  printf("\"p99_ms\": %f, ", percentile_ms(0.99));
  print_counts("statuses", statuses, STATUSES, NULL);
  printf("\"accepted\": %" PRId64 ", \"rows\": %" PRId64 ", ", accepted, rows);
  printf("\"token_sum\": %" PRId64 ", ", token_sum);
  print_counts("faults", faults, FAULTS, fault_names);
  printf("\"generator_cpu\": %f}\n", cpu);
}

int main(void) {
  read_plan();
  read_request();
  int poll = epoll_create1(0);
  struct connection *all = connect_all(poll);
  double cpu = now_on(CLOCK_PROCESS_CPUTIME_ID), begin = now_on(CLOCK_MONOTONIC);
  measured_from = begin + plan.warmup;
  ends_at = measured_from + plan.seconds;
  double given_up_at = ends_at + plan.drained_within;
  for (int64_t i = 0; i < plan.connections; i++) send_next(&all[i]);
  struct epoll_event events[EVENTS];
  while (still_open > 0 && now_on(CLOCK_MONOTONIC) < given_up_at) {
    int count = epoll_wait(poll, events, EVENTS, 100);
    for (int i = 0; i < count; i++)
      if (((struct connection *)events[i].data.ptr)->open) receive(events[i].data.ptr);
  }
  faults[NEVER_CAME] = still_open;
  double took = now_on(CLOCK_MONOTONIC) - begin;
  print_result((now_on(CLOCK_PROCESS_CPUTIME_ID) - cpu) / took);
  return 0;
}
