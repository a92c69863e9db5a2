/* What a pull and a push cost at least: a blocking server and a blocking client, two processes.
 *
 *   pull   client: all keys -> server: looked up, rows copied into a chunk, the chunk sent
 *          -> client, while the server is at the next one: each row copied to its place
 *   push   client: all keys, then rows copied from their places into a chunk, the chunk sent
 *          -> server, while the client is at the next one: added to its rows -> 1 byte
 *
 * No frames, no fragments, no order of keys, no checks, no memory taken once warm.
 *
 *   bare tcp|unix KEYS DIM        KEYS: a file of distinct uint64 keys; row i holds i % 1000
 *
 * then line by line on standard input, answered on standard output:
 *
 *   pull|push FILE N REQUESTS     FILE: REQUESTS x N of those keys, shuffled
 *     -> SECONDS SUM              of all requests; sum of the last one's rows (a push adds ones)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    PULL, PUSH,
    CHUNK_BYTES = 64 << 10,     /* measured: from 128 KiB on chunks fall out of the L2 cache */
    UNIX_BUFFER_BYTES = 1 << 20,
    AHEAD = 16,                 /* rows fetched before they are copied; their index entries 2 x */
    FOUND = 64                  /* ring of rows found, more than 2 x AHEAD */
};

typedef struct { uint32_t op, n; } Request;
typedef struct { uint64_t key; float *row; } Entry;      /* row NULL: empty */

static Entry *entries;
static uint64_t mask;
static size_t dim;

static void fail(const char *what)
{
    fprintf(stderr, "bare: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void *room(size_t bytes)      /* huge pages where there are any, as snailps asks for them */
{
    const size_t huge = 2 << 20;
    void *memory = aligned_alloc(huge, (bytes + huge) / huge * huge);
    if (memory == NULL) fail("memory");
    madvise(memory, (bytes + huge) / huge * huge, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    return memory;
}

static void send_all(int fd, const void *from, size_t bytes)
{
    for (const char *at = from; bytes;) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
        if (sent < 0) fail("send");
        at += sent;
        bytes -= (size_t)sent;
    }
}

static int receive_all(int fd, void *to, size_t bytes)   /* 0: the other side has closed */
{
    for (char *at = to; bytes;) {
        ssize_t got = recv(fd, at, bytes, 0);
        if (got < 0) fail("recv");
        if (got == 0) return 0;
        at += got;
        bytes -= (size_t)got;
    }
    return 1;
}

/* --- server ----------------------------------------------------------------------------------- */

static inline uint64_t place_of(uint64_t key)
{
    key *= 0x9E3779B97F4A7C15u;
    return (key ^ key >> 32) & mask;
}

static inline float *find(uint64_t key)
{
    uint64_t at = place_of(key);
    while (entries[at].key != key || entries[at].row == NULL) at = (at + 1) & mask;
    return entries[at].row;
}

static void fill_table(const uint64_t *keys, size_t n)
{
    float *rows = room(n * dim * sizeof(float));
    uint64_t size = 16;
    while (size < 2 * n) size *= 2;
    mask = size - 1;
    entries = room(size * sizeof(Entry));
    for (size_t i = 0; i < n; i++) {
        uint64_t at = place_of(keys[i]);
        while (entries[at].row != NULL) at = (at + 1) & mask;
        entries[at] = (Entry){ keys[i], rows + i * dim };
        for (size_t d = 0; d < dim; d++) rows[i * dim + d] = (float)(i % 1000);
    }
}

static inline void fetch(const void *row, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)row + at);
}

/* The row of keys[i]; starts the reading of those to come. */
static inline float *next_row(const uint64_t *keys, size_t i, size_t n, float **found)
{
    const size_t row_bytes = dim * sizeof(float);
    if (i == 0) {
        for (size_t j = 0; j < 2 * AHEAD && j < n; j++) fetch(&entries[place_of(keys[j])], 1);
        for (size_t j = 0; j < AHEAD && j < n; j++) fetch(found[j] = find(keys[j]), row_bytes);
    }
    if (i + 2 * AHEAD < n) fetch(&entries[place_of(keys[i + 2 * AHEAD])], 1);
    if (i + AHEAD < n) fetch(found[(i + AHEAD) % FOUND] = find(keys[i + AHEAD]), row_bytes);
    return found[i % FOUND];
}

static void serve(int fd)
{
    const size_t row_bytes = dim * sizeof(float), chunk_rows = CHUNK_BYTES / row_bytes;
    float *chunk = room(CHUNK_BYTES), *found[FOUND];
    uint64_t *keys = NULL;
    size_t cap = 0;
    Request request;
    while (receive_all(fd, &request, sizeof request)) {
        const size_t n = request.n;
        if (n > cap) {
            free(keys);
            keys = room((cap = n) * sizeof *keys);
        }
        if (!receive_all(fd, keys, n * sizeof *keys)) return;
        for (size_t i = 0; i < n;) {
            const size_t bytes = (n - i < chunk_rows ? n - i : chunk_rows) * row_bytes;
            const float *end = chunk + bytes / sizeof(float);
            if (request.op == PUSH && !receive_all(fd, chunk, bytes)) return;
            for (float *at = chunk; at < end; at += dim, i++) {
                float *row = next_row(keys, i, n, found);
                if (request.op == PULL) memcpy(at, row, row_bytes);
                else for (size_t d = 0; d < dim; d++) row[d] += at[d];
            }
            if (request.op == PULL) send_all(fd, chunk, bytes);
        }
        if (request.op == PUSH) send_all(fd, "", 1);
    }
}

/* --- client ----------------------------------------------------------------------------------- */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *read_file(const char *path, size_t *bytes)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (file == NULL || fstat(fileno(file), &info) < 0) fail(path);
    void *content = room(*bytes = (size_t)info.st_size);
    if (fread(content, 1, *bytes, file) != *bytes) fail(path);
    fclose(file);
    return content;
}

/* Sends or receives n rows, which lie at the places of `place` in `rows`. */
static void exchange(int fd, uint32_t op, float *rows, const uint32_t *place, size_t n)
{
    static float chunk[CHUNK_BYTES / sizeof(float)] __attribute__((aligned(64)));
    const size_t row_bytes = dim * sizeof(float), chunk_rows = CHUNK_BYTES / row_bytes;
    for (size_t i = 0; i < n;) {
        const size_t bytes = (n - i < chunk_rows ? n - i : chunk_rows) * row_bytes;
        const float *end = chunk + bytes / sizeof(float);
        if (op == PULL && !receive_all(fd, chunk, bytes)) fail("the server is gone");
        for (float *at = chunk; at < end; at += dim, i++) {
            float *row = rows + place[i] * dim;
            if (op == PULL) memcpy(row, at, row_bytes);
            else {
                if (i + AHEAD < n) fetch(rows + place[i + AHEAD] * dim, row_bytes);
                memcpy(at, row, row_bytes);
            }
        }
        if (op == PUSH) send_all(fd, chunk, bytes);
    }
}

static void ask(int fd, uint32_t op, const char *path, uint32_t n, size_t requests)
{
    size_t bytes;
    uint64_t *keys = read_file(path, &bytes);
    float *rows = room(n * dim * sizeof(float));
    uint32_t *place = room(n * sizeof *place);
    Request request = { op, n };
    double sum = 0;
    if (bytes != requests * n * sizeof *keys) {
        errno = EINVAL;
        fail(path);
    }
    for (size_t i = 0; i < n * dim; i++) rows[i] = 1;       /* touched, and what a push adds */
    srand48(1);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t other = (uint32_t)(drand48() * (i + 1));
        place[i] = place[other];
        place[other] = i;
    }
    double begin_s = now_s();
    for (size_t r = 0; r < requests; r++) {
        /* At once: the server needs to be woken only once for a small request. */
        struct iovec parts[] = { { &request, sizeof request }, { keys + r * n, n * sizeof *keys } };
        struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
        char done;
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < (ssize_t)sizeof request) fail("send");
        sent -= (ssize_t)sizeof request;
        send_all(fd, (char *)parts[1].iov_base + sent, parts[1].iov_len - (size_t)sent);
        exchange(fd, op, rows, place, n);
        if (op == PUSH && !receive_all(fd, &done, 1)) fail("the server is gone");
    }
    double end_s = now_s();
    for (size_t i = 0; i < n * dim; i++) sum += rows[i];
    printf("%.9f %.1f\n", end_s - begin_s, sum);
    fflush(stdout);
    free(keys);
    free(rows);
    free(place);
}

/* Two connected sockets: a pair of Unix ones, or TCP over the loopback. */
static void connect_both(int fds[2], int over_unix)
{
    int one = 1, buffer_bytes = UNIX_BUFFER_BYTES, listener;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof at;
    if (over_unix) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) < 0) fail("socketpair");
        for (int i = 0; i < 2; i++)
            setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
        return;
    }
    if ((listener = socket(AF_INET, SOCK_STREAM, 0)) < 0
        || bind(listener, (void *)&at, sizeof at) < 0 || listen(listener, 1) < 0
        || getsockname(listener, (void *)&at, &length) < 0
        || (fds[0] = socket(AF_INET, SOCK_STREAM, 0)) < 0
        || connect(fds[0], (void *)&at, length) < 0 || (fds[1] = accept(listener, NULL, NULL)) < 0)
        fail("loopback connection");
    for (int i = 0; i < 2; i++) setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(listener);
}

int main(int argc, char **argv)
{
    int fds[2];
    char line[4200], op[16], path[4096];
    uint32_t n;
    size_t bytes, requests;
    if (argc != 4 || (dim = (size_t)atoi(argv[3])) == 0 || dim * sizeof(float) > CHUNK_BYTES) {
        fprintf(stderr, "usage: bare tcp|unix KEYS DIM\n");
        return 2;
    }
    connect_both(fds, strcmp(argv[1], "unix") == 0);
    pid_t server = fork();
    if (server < 0) fail("fork");
    if (server == 0) {
        close(fds[0]);
        uint64_t *keys = read_file(argv[2], &bytes);
        fill_table(keys, bytes / sizeof *keys);
        free(keys);
        serve(fds[1]);
        return 0;
    }
    close(fds[1]);
    while (fgets(line, sizeof line, stdin)
           && sscanf(line, "%15s %4095s %u %zu", op, path, &n, &requests) == 4)
        ask(fds[0], strcmp(op, "pull") == 0 ? PULL : PUSH, path, n, requests);
    close(fds[0]);
    waitpid(server, NULL, 0);
    return 0;
}
