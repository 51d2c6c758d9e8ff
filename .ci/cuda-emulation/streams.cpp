// Streams of the emulated machine: which operation runs when.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "machine.hpp"

namespace emulated {

static uint64_t number(const char* name, uint64_t otherwise) {
    const char* text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 0) : otherwise;
}

static bool is(const char* name, const char* value) {
    const char* text = getenv(name);
    return text && !strcmp(text, value);
}

static bool has(const char* name, const char* value) {
    const char* text = getenv(name);
    return text && strstr(text, value);
}

const Settings& settings() {
    static const Settings all = {
        int(number("EMULATED_GPUS", 1)),
        size_t(number("EMULATED_MEMORY", 4096)) << 20,
        int(number("EMULATED_CAPABILITY", 90)),
        number("EMULATED_SEED", 0),
        is("EMULATED_STREAMS", "later"),
        is("EMULATED_RACES", "said"),
        !is("EMULATED_POOLS", "none"),
        !is("EMULATED_PEERS", "none"),
        is("EMULATED_PEERS", "broken"),
        is("EMULATED_NCCL", "hangs"),
        has("EMULATED_CUDNN", "one"),
        has("EMULATED_CUDNN", "pad"),
        has("EMULATED_CUDNN", "alike"),
        getenv("EMULATED_FAULT") ? getenv("EMULATED_FAULT") : "",
    };
    return all;
}

std::mutex& lock() {
    static auto* mutex = new std::mutex;  // threads may outlive main
    return *mutex;
}

size_t chance(size_t n) {
    static auto* generator = new std::mt19937_64(settings().seed);
    return (*generator)() % n;
}

void join(Clock& clock, const Clock& other) {
    if (clock.size() < other.size()) clock.resize(other.size(), 0);
    for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

// What the host knows to be done. All host threads share one clock, because they may synchronize with each other.
static Clock& host() {
    static auto* clock = new Clock;
    return *clock;
}

void seen(const Mark& mark) { join(host(), mark.clock); }

static std::vector<Stream*>& streams() {
    static auto* all = new std::vector<Stream*>;
    return *all;
}

static const size_t PRIORITIES = 1000;

Stream* new_stream(int gpu) {
    static size_t count = 0;
    const size_t number = count++;
    streams().push_back(new Stream{gpu, number, chance(PRIORITIES), Clock(number + 1, 0)});
    return streams().back();
}

static void forget_destroyed() {
    const auto gone = [](Stream* stream) {
        const bool is = stream->destroyed && stream->queue.empty();
        if (is) delete stream;
        return is;
    };
    auto& all = streams();
    all.erase(std::remove_if(all.begin(), all.end(), gone), all.end());
}

void destroy(Stream* stream) {
    stream->destroyed = true;
    forget_destroyed();
}

Stream* stream_of(void* handle, int gpu) {
    static auto* defaults = new std::map<int, Stream*>;
    const bool is_default = reinterpret_cast<uintptr_t>(handle) <= 2;  // null, the legacy stream, the thread's stream
    if (is_default) {
        if (gpu < 0) return nullptr;
        Stream*& stream = (*defaults)[gpu];
        return stream ? stream : stream = new_stream(gpu);
    }
    auto& all = streams();
    const auto found = std::find(all.begin(), all.end(), handle);
    return found == all.end() || (*found)->destroyed ? nullptr : *found;
}

// Advances the clock to the first operation: it comes after the earlier ones, and after what the host knew to be done.
static void begin(Stream* stream) {
    join(stream->clock, stream->queue.front().host);
    ++stream->clock[stream->number];
}

static bool can_run(Stream* stream) {
    if (stream->queue.empty()) return false;
    const Operation& first = stream->queue.front();
    if (!first.ready) return true;
    begin(stream);
    const Doing doing(stream, first);
    return first.ready();
}

static void run_first(Stream* stream) {
    begin(stream);
    const Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    const Doing doing(stream, operation);
    operation.run();
}

// Runs one operation, of the stream with the highest priority that can run. Priorities change at random, so that a
// stream may be far ahead of another.
static bool step() {
    auto& all = streams();
    if (!all.empty() && !chance(32)) all[chance(all.size())]->priority = chance(PRIORITIES);
    Stream* first = nullptr;
    for (Stream* stream : all)
        if ((!first || stream->priority > first->priority) && can_run(stream)) first = stream;
    if (!first) return false;
    run_first(first);
    if (first->destroyed) forget_destroyed();
    return true;
}

void go_on() {
    static size_t eagerness = 0;
    if (!settings().later) {
        while (step()) continue;
        return;
    }
    if (!chance(256)) eagerness = (const size_t[]){0, 1, 8}[chance(3)];
    for (size_t n = chance(eagerness + 1); n > 0 && step(); --n) continue;
}

void enqueue(Stream* stream, Operation operation) {
    operation.host = host();
    stream->queue.push_back(std::move(operation));
    go_on();
}

static double now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(since).count();
}

std::shared_ptr<Mark> record(Stream* stream) {
    auto mark = std::make_shared<Mark>();
    enqueue(stream, {"an event", [=] { *mark = {true, now(), stream->clock}; }});
    return mark;
}

void wait(Stream* stream, std::shared_ptr<Mark> mark) {
    enqueue(stream, {"a wait", [=] { join(stream->clock, mark->clock); }, [mark] { return mark->reached; }});
}

void until(const std::function<bool()>& so) {
    while (!so()) {
        if (step()) continue;
        // another process or thread must go on first
        lock().unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        lock().lock();
    }
}

void until_reached(const std::shared_ptr<Mark>& mark) {
    until([&] { return mark->reached; });
    seen(*mark);
}

void until_done(Stream* stream) { until_reached(record(stream)); }

void until_all_done(int gpu) {
    std::vector<std::shared_ptr<Mark>> last;
    for (Stream* stream : std::vector<Stream*>(streams()))
        if (stream->gpu == gpu) last.push_back(record(stream));
    for (const auto& mark : last) until_reached(mark);
}

}  // namespace emulated
