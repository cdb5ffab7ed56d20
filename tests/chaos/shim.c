/* Preloaded into the processes under test: steps their wall clock and slows their syncs.
 *
 * It reads two numbers from a file that the harness writes and that every process maps. The monotonic clock is left
 * alone, as a step of the real clock leaves it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t step_seconds;
    int64_t sync_milliseconds;
};
static volatile struct control *control;
static struct control nothing;

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("CHAOS_SHIM");
    control = &nothing;
    if (path == NULL)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *found = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED)
        control = found;
}

static int64_t step(void) { return control == NULL ? 0 : control->step_seconds; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += step();
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(now, zone);
    if (code == 0)
        now->tv_sec += step();
    return code;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to != NULL)
        *to = now.tv_sec;
    return now.tv_sec;
}

static void wait_before_sync(void) {
    int64_t left = control == NULL ? 0 : control->sync_milliseconds;
    if (left > 0) {
        struct timespec pause = {left / 1000, left % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
}

int fsync(int file) {
    static int (*real)(int);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "fsync");
    wait_before_sync();
    return real(file);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (real == NULL)
        real = dlsym(RTLD_NEXT, "fdatasync");
    wait_before_sync();
    return real(file);
}
