/* A stand-in for libnvidia-ml.so.1 whose boards follow a script, so that tests drive the unmodified binding.
 *
 * The script is the file that GHOSTWATT_NVML_STUB names, read at nvmlInit (harness.py writes it). All times
 * are seconds since its `origin` on CLOCK_MONOTONIC, so that several processes see one history; with
 * `clock manual` time is what nvmlStubSetTime set instead. A board's power is a polygon through its `power`
 * points; its energy is that polygon's integral, refreshed every `period` seconds, as is its power.
 */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MANY 64
#define EXPORT __attribute__((visibility("default")))

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, ERROR_UNKNOWN = 999
};
enum { TYPE_UINT = 1, TYPE_ULONG_LONG = 3 };
enum { FIELD_TOTAL_ENERGY = 83, FIELD_AVERAGE = 185, FIELD_INSTANT = 186, FIELD_ENERGY = 191 };

typedef struct { double from, to; } Span;
typedef struct { char what[80]; int code; Span when; } Failure;
typedef struct { unsigned pid; Span when; int is_mortal; } Process;
typedef struct { unsigned long long value; Span when; } Setting;
typedef struct { double t, watts; } Point;

typedef struct Board Board;
typedef struct { int is_slice; Board *parent; char uuid[96]; } Device;
struct Board {
    Device self;
    char name[96];
    unsigned long long memory, counter_mj;
    unsigned limit_mw, major, minor, architecture, max_boost_mhz[3];
    double period, module_extra_w;
    Point points[4096];
    int n_points;
    double resets[MANY]; int n_resets;
    Failure failures[MANY]; int n_failures;
    Process processes[MANY]; int n_processes;
    Setting throttles[MANY]; int n_throttles;
    Setting utilizations[MANY]; int n_utilizations;
    Setting clock_limits[3][MANY]; int n_clock_limits[3]; /* by type of clock; without one: not supported */
    Device slices[8]; int n_slices;
    Span lost;
};

static struct {
    Board *boards[16]; int n_boards;
    char driver[64];
    double origin, latency;
    int manual, init_code, fork_unsafe;
    double reloads[MANY]; int n_reloads;
    Failure failures[MANY]; int n_failures;
} script;
static int references;
static pid_t owner;
static double opened_at, manual_now;
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static struct { char name[64]; unsigned long count; } calls[128];

static double now(void) {
    struct timespec t;
    if (script.manual) return manual_now;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9 - script.origin;
}
static int within(Span span, double t) { return span.from <= t && t < span.to; }

EXPORT void nvmlStubSetTime(double seconds) { manual_now = seconds; }
EXPORT unsigned long nvmlStubCalls(const char *name) {
    for (int i = 0; i < 128 && calls[i].name[0]; i++)
        if (!strcmp(calls[i].name, name)) return calls[i].count;
    return 0;
}
static void count_call(const char *name) {
    pthread_mutex_lock(&counting);
    for (int i = 0; i < 128; i++) {
        if (!calls[i].name[0]) snprintf(calls[i].name, sizeof calls[i].name, "%s", name);
        if (!strcmp(calls[i].name, name)) { calls[i].count++; break; }
    }
    pthread_mutex_unlock(&counting);
}

/* The script */

#define WORD() word(rest, line)
#define NUMBER() number(WORD(), line)
#define NEXT(array, count) ((count) < (int)(sizeof (array) / sizeof (array)[0]) ? &(array)[(count)++] : (refuse(line), &(array)[0]))

static void refuse(const char *line) {
    fprintf(stderr, "nvml stub: can't understand the script line: %s\n", line);
    abort();
}
static char *word(char **rest, const char *line) {
    char *found = strtok_r(NULL, " ", rest);
    if (!found) refuse(line);
    return found;
}
static double number(const char *word, const char *line) {
    char *end;
    double value = strtod(word, &end);
    if (*end) refuse(line);
    return value;
}
static Span span_of(char **rest, const char *line) {
    Span span;
    span.from = NUMBER();
    span.to = NUMBER();
    return span;
}
static void read_failure(Failure *failure, char **rest, const char *line) {
    snprintf(failure->what, sizeof failure->what, "%s", WORD());
    failure->code = (int)NUMBER();
    failure->when = span_of(rest, line);
}
static void read_board_line(Board *b, const char *key, char **rest, const char *line) {

    if (!strcmp(key, "name")) { snprintf(b->name, sizeof b->name, "%s", *rest); }
    else if (!strcmp(key, "memory")) b->memory = (unsigned long long)NUMBER();
    else if (!strcmp(key, "counter")) b->counter_mj = (unsigned long long)NUMBER();
    else if (!strcmp(key, "limit")) b->limit_mw = (unsigned)NUMBER();
    else if (!strcmp(key, "architecture")) b->architecture = (unsigned)NUMBER();
    else if (!strcmp(key, "capability")) { b->major = (unsigned)NUMBER(); b->minor = (unsigned)NUMBER(); }
    else if (!strcmp(key, "max_boost")) {
        unsigned type = (unsigned)NUMBER();
        if (type > 2) refuse(line);
        b->max_boost_mhz[type] = (unsigned)NUMBER();
    } else if (!strcmp(key, "period")) b->period = NUMBER();
    else if (!strcmp(key, "module_extra")) b->module_extra_w = NUMBER();
    else if (!strcmp(key, "reset")) *NEXT(b->resets, b->n_resets) = NUMBER();
    else if (!strcmp(key, "lost")) b->lost = span_of(rest, line);
    else if (!strcmp(key, "power")) {
        Point *p = NEXT(b->points, b->n_points);
        p->t = NUMBER();
        p->watts = NUMBER();
    } else if (!strcmp(key, "fail")) {
        read_failure(NEXT(b->failures, b->n_failures), rest, line);
    } else if (!strcmp(key, "process") || !strcmp(key, "mortal")) {
        Process *p = NEXT(b->processes, b->n_processes);
        p->is_mortal = key[0] == 'm'; /* on the board only while it lives */
        p->pid = (unsigned)NUMBER();
        p->when = span_of(rest, line);
    } else if (!strcmp(key, "throttle") || !strcmp(key, "utilization")) {
        Setting *s = key[0] == 't' ? NEXT(b->throttles, b->n_throttles) : NEXT(b->utilizations, b->n_utilizations);
        s->value = (unsigned long long)NUMBER();
        s->when = span_of(rest, line);
    } else if (!strcmp(key, "clock_limit")) {
        unsigned type = (unsigned)NUMBER();
        if (type > 2) refuse(line);
        Setting *s = NEXT(b->clock_limits[type], b->n_clock_limits[type]);
        s->value = (unsigned long long)NUMBER();
        s->when = span_of(rest, line);
    } else if (!strcmp(key, "slice")) {
        Device *d = NEXT(b->slices, b->n_slices);
        d->is_slice = 1;
        d->parent = b;
        snprintf(d->uuid, sizeof d->uuid, "%s", WORD());
    } else refuse(line);
}
static void read_script(void) {
    char text[512], line[512], *cursor, **rest = &cursor, *key;
    Board *board = NULL;
    const char *path = getenv("GHOSTWATT_NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    for (int i = 0; i < script.n_boards; i++) free(script.boards[i]);
    memset(&script, 0, sizeof script);
    snprintf(script.driver, sizeof script.driver, "stub");
    if (!file) return;
    while (fgets(text, sizeof text, file)) {
        text[strcspn(text, "\n")] = 0;
        snprintf(line, sizeof line, "%s", text);
        key = strtok_r(text, " ", rest);
        if (!key) continue;
        if (!strcmp(key, "board")) {
            board = *NEXT(script.boards, script.n_boards) = calloc(1, sizeof *board);
            board->self.parent = board;
            snprintf(board->self.uuid, sizeof board->self.uuid, "%s", WORD());
        }
        else if (board) read_board_line(board, key, rest, line);
        else if (!strcmp(key, "driver")) snprintf(script.driver, sizeof script.driver, "%s", *rest);
        else if (!strcmp(key, "origin")) script.origin = NUMBER();
        else if (!strcmp(key, "latency")) script.latency = NUMBER();
        else if (!strcmp(key, "clock")) script.manual = !strcmp(*rest, "manual");
        else if (!strcmp(key, "init")) script.init_code = (int)NUMBER();
        else if (!strcmp(key, "fork_unsafe")) script.fork_unsafe = 1;
        else if (!strcmp(key, "reload")) *NEXT(script.reloads, script.n_reloads) = NUMBER();
        else if (!strcmp(key, "fail")) {
            read_failure(NEXT(script.failures, script.n_failures), rest, line);
        }
        else refuse(line);
    }
    fclose(file);
}

/* Power and energy */

static double watts_at(const Board *b, double t) {
    if (!b->n_points) return 0;
    if (t <= b->points[0].t) return b->points[0].watts;
    for (int i = 1; i < b->n_points; i++) {
        Point p = b->points[i - 1], q = b->points[i];
        if (t < q.t) return p.watts + (q.watts - p.watts) * (t - p.t) / (q.t - p.t);
    }
    return b->points[b->n_points - 1].watts;
}
static double joules_until(const Board *b, double t) {
    double joules = 0, from = 0;
    if (t <= 0) return 0;
    for (int i = 0; i < b->n_points && b->points[i].t <= t; i++) {
        double to = b->points[i].t;
        if (to <= from) continue;
        joules += (to - from) * (watts_at(b, from) + b->points[i].watts) / 2;
        from = to;
    }
    /* a step has two points at one time: the later one holds from there on */
    return joules + (t - from) * (watts_at(b, from) + watts_at(b, t)) / 2;
}
static double refreshed(const Board *b, double t) {
    return b->period > 0 ? floor(t / b->period + 1e-9) * b->period : t;
}
static double counter_mj(const Board *b, double extra_w) {
    double t = refreshed(b, now()), start = 0, base = (double)b->counter_mj;
    for (int i = 0; i < b->n_resets; i++) if (b->resets[i] <= now() && b->resets[i] >= start) { start = b->resets[i]; base = 0; }
    for (int i = 0; i < script.n_reloads; i++) if (script.reloads[i] <= now() && script.reloads[i] >= start) { start = script.reloads[i]; base = 0; }
    if (t < start) t = start;
    return base + 1000 * (joules_until(b, t) - joules_until(b, start) + extra_w * (t - start));
}
static double instant_mw(const Board *b) { return 1000 * watts_at(b, refreshed(b, now())); }
static double average_mw(const Board *b) {
    double t = refreshed(b, now()), from = t > 1 ? t - 1 : 0;
    return t > from ? 1000 * (joules_until(b, t) - joules_until(b, from)) / (t - from) : instant_mw(b);
}

/* Whether a call fails */

static int session_code(void) {
    if (!references || (script.fork_unsafe && owner != getpid())) return UNINITIALIZED;
    for (int i = 0; i < script.n_reloads; i++)
        if (opened_at < script.reloads[i] && script.reloads[i] <= now()) return UNINITIALIZED;
    return SUCCESS;
}
static int failing(const Failure *failures, int count, const char *what) {
    for (int i = 0; i < count; i++)
        if (within(failures[i].when, now()) && !strcmp(failures[i].what, what)) return failures[i].code;
    return SUCCESS;
}
static int enter(const char *function, const Board *b) {
    int code;
    count_call(function);
    if (script.latency > 0) {
        struct timespec pause = { (time_t)script.latency, (long)(fmod(script.latency, 1) * 1e9) };
        nanosleep(&pause, NULL);
    }
    if ((code = session_code())) return code;
    if ((code = failing(script.failures, script.n_failures, function))) return code;
    if (!b) return SUCCESS;
    if (within(b->lost, now())) return GPU_IS_LOST;
    return failing(b->failures, b->n_failures, function);
}
#define ENTER(board) do { int code_ = enter(__func__, board); if (code_) return code_; } while (0)
#define BOARD_ONLY(device) do { if ((device)->is_slice) return NOT_SUPPORTED; } while (0)

/* NVML's functions */

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    count_call(__func__);
    if (!references) read_script();
    if (script.init_code) return script.init_code;
    int code = failing(script.failures, script.n_failures, __func__);
    if (code) return code;
    references++;
    owner = getpid();
    opened_at = now();
    return SUCCESS;
}
EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlShutdown(void) {
    count_call(__func__);
    if (!references) return UNINITIALIZED;
    references--;
    return SUCCESS;
}
EXPORT const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "stub error %d", code);
    return text;
}
static int copy(char *to, unsigned length, const char *from) {
    if (strlen(from) >= length) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}
EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER(NULL);
    return copy(version, length, script.driver);
}
EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    ENTER(NULL);
    return copy(version, length, "12.stub");
}
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(NULL);
    *count = (unsigned)script.n_boards;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    ENTER(NULL);
    if (index >= (unsigned)script.n_boards) return INVALID_ARGUMENT;
    if (within(script.boards[index]->lost, now())) return GPU_IS_LOST;
    *device = &script.boards[index]->self;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    ENTER(NULL);
    for (int i = 0; i < script.n_boards; i++) {
        Board *b = script.boards[i];
        *device = strcmp(b->self.uuid, uuid) ? NULL : &b->self;
        for (int s = 0; s < b->n_slices && !*device; s++)
            if (!strcmp(b->slices[s].uuid, uuid)) *device = &b->slices[s];
        if (*device) return within(b->lost, now()) ? GPU_IS_LOST : SUCCESS;
    }
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetIndex(Device *device, unsigned *index) {
    ENTER(device->parent);
    for (int i = 0; i < script.n_boards; i++) if (script.boards[i] == device->parent) *index = (unsigned)i;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    ENTER(device->parent);
    return copy(uuid, length, device->uuid);
}
EXPORT int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    ENTER(device->parent);
    return copy(name, length, device->parent->name);
}
typedef struct { unsigned long long total, free, used; } Memory;
EXPORT int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    ENTER(device->parent);
    *memory = (Memory){ device->parent->memory, device->parent->memory, 0 };
    return SUCCESS;
}
EXPORT int nvmlDeviceGetArchitecture(Device *device, unsigned *architecture) {
    ENTER(device->parent);
    *architecture = device->parent->architecture;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    ENTER(device->parent);
    *major = (int)device->parent->major;
    *minor = (int)device->parent->minor;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *energy) {
    ENTER(device->parent);
    BOARD_ONLY(device);
    *energy = (unsigned long long)counter_mj(device->parent, 0);
    return SUCCESS;
}
EXPORT int nvmlDeviceGetPowerUsage(Device *device, unsigned *power) {
    ENTER(device->parent);
    BOARD_ONLY(device);
    const Board *b = device->parent;
    int mean = b->major > 8 || (b->major == 8 && b->minor > 0);
    *power = (unsigned)lround(mean ? average_mw(b) : instant_mw(b));
    return SUCCESS;
}
static int limit_of(const char *function, Device *device, unsigned *limit) {
    int code = enter(function, device->parent);
    if (!code) *limit = device->parent->limit_mw;
    return code;
}
EXPORT int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *limit) { return limit_of(__func__, device, limit); }
EXPORT int nvmlDeviceGetPowerManagementLimit(Device *device, unsigned *limit) { return limit_of(__func__, device, limit); }
EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(Device *device, unsigned *limit) { return limit_of(__func__, device, limit); }
typedef struct {
    unsigned field, scope;
    int64_t timestamp, latency_us;
    unsigned type, code;
    union { double d; unsigned u; unsigned long ul; unsigned long long ull; } value;
} FieldValue;
EXPORT int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    ENTER(device->parent);
    const Board *b = device->parent;
    for (int i = 0; i < count; i++) {
        FieldValue *v = &values[i];
        char what[80];
        double extra_w = v->scope == 1 ? b->module_extra_w : 0;
        snprintf(what, sizeof what, "field:%u:%u", v->field, v->scope);
        v->code = (unsigned)failing(b->failures, b->n_failures, what);
        if (v->code) continue;
        if (device->is_slice || v->scope > 1 || (v->scope == 1 && b->module_extra_w <= 0)) {
            v->code = NOT_SUPPORTED;
            continue;
        }
        if (v->field == FIELD_ENERGY || v->field == FIELD_TOTAL_ENERGY) {
            v->type = TYPE_ULONG_LONG;
            v->value.ull = (unsigned long long)counter_mj(b, extra_w);
        } else if (v->field == FIELD_INSTANT || v->field == FIELD_AVERAGE) {
            double mw = v->field == FIELD_INSTANT ? instant_mw(b) : average_mw(b);
            v->type = TYPE_UINT;
            v->value.u = (unsigned)lround(mw + 1000 * extra_w);
        } else v->code = NOT_SUPPORTED;
    }
    return SUCCESS;
}
EXPORT int nvmlDeviceGetClockInfo(Device *device, unsigned type, unsigned *mhz) {
    ENTER(device->parent);
    if (type > 3) return INVALID_ARGUMENT;
    *mhz = type == 2 ? 2619 : 1980;
    return SUCCESS;
}
static int clock_limit_of(const char *function, Device *device, unsigned type, unsigned *mhz) {
    const Board *b = device->parent;
    int code = enter(function, b);
    if (code) return code;
    if (type > 2) return INVALID_ARGUMENT;
    for (int i = 0; i < b->n_clock_limits[type]; i++)
        if (within(b->clock_limits[type][i].when, now())) {
            *mhz = (unsigned)b->clock_limits[type][i].value;
            return SUCCESS;
        }
    return NOT_SUPPORTED;
}
EXPORT int nvmlDeviceGetApplicationsClock(Device *device, unsigned type, unsigned *mhz) {
    return clock_limit_of(__func__, device, type, mhz);
}
EXPORT int nvmlDeviceGetClock(Device *device, unsigned type, unsigned id, unsigned *mhz) {
    return id == 1 ? clock_limit_of(__func__, device, type, mhz) : INVALID_ARGUMENT;
}
EXPORT int nvmlDeviceGetMaxCustomerBoostClock(Device *device, unsigned type, unsigned *mhz) {
    ENTER(device->parent);
    if (type > 2) return INVALID_ARGUMENT;
    if (!device->parent->max_boost_mhz[type]) return NOT_SUPPORTED;
    *mhz = device->parent->max_boost_mhz[type];
    return SUCCESS;
}
EXPORT int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *celsius) {
    ENTER(device->parent);
    if (sensor) return INVALID_ARGUMENT;
    *celsius = 45;
    return SUCCESS;
}
typedef struct { unsigned gpu, memory; } Utilization;
EXPORT int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    ENTER(device->parent);
    BOARD_ONLY(device);
    *rates = (Utilization){ 0, 0 };
    for (int i = 0; i < device->parent->n_utilizations; i++)
        if (within(device->parent->utilizations[i].when, now())) rates->gpu = (unsigned)device->parent->utilizations[i].value;
    return SUCCESS;
}
static int reasons_of(const char *function, Device *device, unsigned long long *bits) {
    int code = enter(function, device->parent);
    *bits = 0;
    for (int i = 0; i < device->parent->n_throttles; i++)
        if (within(device->parent->throttles[i].when, now())) *bits |= device->parent->throttles[i].value;
    return code;
}
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *bits) { return reasons_of(__func__, device, bits); }
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *bits) { return reasons_of(__func__, device, bits); }
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } ProcessInfo;
static int processes_of(const char *function, Device *device, unsigned *count, ProcessInfo *infos) {
    int code = enter(function, device->parent);
    if (code) return code;
    unsigned found = 0;
    for (int i = 0; i < device->parent->n_processes; i++) {
        Process p = device->parent->processes[i];
        if (!within(p.when, now()) || (p.is_mortal && kill((pid_t)p.pid, 0))) continue;
        if (infos && found < *count) infos[found] = (ProcessInfo){ p.pid, 1 << 20, 0, 0 };
        found++;
    }
    int fits = found <= *count && (infos || !found);
    *count = found;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(Device *device, unsigned *count, ProcessInfo *infos) { return processes_of(__func__, device, count, infos); }
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *infos) { return processes_of(__func__, device, count, infos); }
EXPORT int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    ENTER(device->parent);
    if (device->parent->major < 8) return NOT_SUPPORTED;
    *current = *pending = device->parent->n_slices > 0;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    ENTER(device->parent);
    *count = device->parent->n_slices ? 7 : 0;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned index, Device **slice) {
    ENTER(device->parent);
    if (index >= (unsigned)device->parent->n_slices) return NOT_FOUND;
    *slice = &device->parent->slices[index];
    return SUCCESS;
}
EXPORT int nvmlDeviceIsMigDeviceHandle(Device *device, unsigned *is_slice) {
    ENTER(device->parent);
    *is_slice = (unsigned)device->is_slice;
    return SUCCESS;
}
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device *slice, Device **device) {
    ENTER(slice->parent);
    if (!slice->is_slice) return INVALID_ARGUMENT;
    *device = &slice->parent->self;
    return SUCCESS;
}
