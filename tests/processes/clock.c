/* Shows a process a wall clock that is off: preload it, with WALTZ_TEST_CLOCK naming a file of one int64 in this machine's
 * byte order, the nanoseconds to add. Whoever writes to the file moves the clock, forwards or backwards, at once.
 *
 * Only the wall clock: what Python waits with (sem_clockwait, epoll, clock_nanosleep) goes by the monotonic one, as it does
 * where an administrator sets the clock. libfaketime 0.9.10 cannot be used for this: it counts absolute deadlines of
 * clock_nanosleep from the faked wall clock, whichever clock they are of, even with FAKETIME_DONT_FAKE_MONOTONIC, so
 * time.sleep of Python 3.11 fails with EINVAL. It ends the thread in which kazoo dials ZooKeeper again.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static const volatile int64_t *offset;

static void begin(void) {
  if (offset != NULL) return;
  real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  const char *path = getenv("WALTZ_TEST_CLOCK");
  int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (real_clock_gettime == NULL || mapped == MAP_FAILED) {
    fprintf(stderr, "clock.c: WALTZ_TEST_CLOCK=%s cannot be used\n", path == NULL ? "" : path);
    abort(); /* a fault that does not happen would prove nothing */
  }
  close(file);
  offset = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  begin();
  int status = real_clock_gettime(clock, now);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)) {
    int64_t ns = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + *offset;
    now->tv_sec = ns / 1000000000;
    now->tv_nsec = ns % 1000000000;
  }
  return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec at;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &at) != 0) return -1;
  now->tv_sec = at.tv_sec;
  now->tv_usec = at.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *result) {
  struct timespec at;
  if (clock_gettime(CLOCK_REALTIME, &at) != 0) return (time_t)-1;
  if (result != NULL) *result = at.tv_sec;
  return at.tv_sec;
}

int timespec_get(struct timespec *now, int base) {
  return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}
