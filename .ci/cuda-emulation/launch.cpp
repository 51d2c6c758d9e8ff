// Runs kernels: the blocks of a grid one after the other, the threads of a block in turns, both in random order. A
// thread runs until it waits for others. So a thread without a needed barrier reads values that are not written yet.

#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <numeric>
#include <vector>

#include "machine.hpp"

namespace emulated {
namespace {

const size_t STACK = 256 << 10, WARP = 32;
const size_t SHARED = 48 << 10;  // the most bytes that a block may share without an opt-in
const size_t MARGIN = 64;        // after each shared variable, to detect writes behind it

enum class State { fresh, ready, at_block, at_warp, done };

// A stack that runs threads. A waiting thread keeps its fiber.
struct Fiber {
    ucontext_t start;
    jmp_buf here;
    std::vector<char> stack;
    bool started = false;
};

struct Running {
    State state;
    unsigned int mask;   // at_warp
    Fiber* fiber;        // while it waits
    unsigned char value[16];  // of an exchange
};

struct Variable {
    const void* key;
    size_t at, size;
};

// The block that runs.
const Kernel* kernel;
void** parameters;
Thread identity;
size_t threads, current;
std::vector<Running> all;
std::vector<size_t> turns;  // of the threads that can run, the next one last
std::vector<Fiber*> idle;
Fiber* running;
jmp_buf scheduler;
std::vector<Variable> variables;
std::vector<unsigned char> shared_memory;
size_t shared_used;

void become(size_t thread) {
    current = thread;
    identity.thread.x = thread % identity.block_size.x;
    identity.thread.y = thread / identity.block_size.x % identity.block_size.y;
    identity.thread.z = thread / identity.block_size.x / identity.block_size.y;
}

// Runs threads that have not begun, on this fiber, for ever.
void work() {
    for (;;) {
        while (!turns.empty() && all[turns.back()].state == State::fresh) {
            become(turns.back());
            turns.pop_back();
            kernel->run(parameters);
            all[current].state = State::done;
        }
        idle.push_back(running);
        if (!_setjmp(running->here)) _longjmp(scheduler, 1);
    }
}

Fiber* free_fiber() {
    if (idle.empty()) {
        auto* fiber = new Fiber;
        fiber->stack.resize(STACK);
        idle.push_back(fiber);
    }
    Fiber* fiber = idle.back();
    idle.pop_back();
    return fiber;
}

// Runs the fiber until it waits, or has no work. Only the first switch to a fiber makes a system call.
void resume(Fiber* fiber) {
    running = fiber;
    if (_setjmp(scheduler)) return;
    if (fiber->started) _longjmp(fiber->here, 1);
    fiber->started = true;
    getcontext(&fiber->start);
    fiber->start.uc_stack.ss_sp = fiber->stack.data();
    fiber->start.uc_stack.ss_size = STACK;
    makecontext(&fiber->start, work, 0);
    setcontext(&fiber->start);
}

// Suspends the calling thread until its next turn; others run meanwhile.
void yield(State state) {
    const size_t me = current;
    all[me].state = state;
    all[me].fiber = running;
    if (!_setjmp(running->here)) _longjmp(scheduler, 1);
    become(me);
}

void shuffle(std::vector<size_t>& order) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[chance(i)]);
}

void let_go(size_t thread) {
    all[thread].state = State::ready;
    turns.push_back(thread);
}

// Resumes the threads of a warp once all threads of their mask wait, or have ended.
void open_warps() {
    for (size_t first = 0; first < threads; first += WARP) {
        const size_t end = std::min(first + WARP, threads);
        for (size_t i = first; i < end; ++i) {
            if (all[i].state != State::at_warp) continue;
            const unsigned int mask = all[i].mask;
            bool complete = true;
            for (size_t k = first; k < end; ++k) {
                const bool named = mask >> (k - first) & 1, waits = all[k].state == State::at_warp;
                if (named && waits && all[k].mask != mask) violated("threads of a warp wait with different masks");
                if (named && !waits && all[k].state != State::done) complete = false;
            }
            for (size_t k = first; complete && k < end; ++k)
                if (mask >> (k - first) & 1 && all[k].state == State::at_warp) let_go(k);
        }
    }
}

void open_barriers() {
    open_warps();
    if (!turns.empty()) return;
    const auto in = [](State state) {
        return std::count_if(all.begin(), all.end(), [&](const Running& r) { return r.state == state; });
    };
    const size_t at_block = in(State::at_block);
    if (in(State::at_warp)) violated("%zu threads wait for their block, others for their warp", at_block);
    for (size_t i = 0; i < threads; ++i)
        if (all[i].state == State::at_block) let_go(i);
}

void check_shared() {
    for (const Variable& of : variables) {
        const unsigned char* behind = &shared_memory[of.at + of.size];
        const auto untouched = [](unsigned char c) { return c == 0xff; };
        if (!std::all_of(behind, behind + MARGIN, untouched))
            violated("something was written behind %zu shared bytes", of.size);
    }
}

void run_block(size_t dynamic) {
    all.assign(threads, {State::fresh, 0, nullptr, {}});
    turns.resize(threads);
    std::iota(turns.begin(), turns.end(), 0);
    variables.clear();
    shared_used = dynamic ? dynamic + MARGIN : 0;
    std::fill_n(shared_memory.begin(), shared_used, 0xff);
    if (dynamic) variables.push_back({nullptr, 0, dynamic});
    for (; !turns.empty(); open_barriers()) {
        shuffle(turns);
        while (!turns.empty()) {
            const size_t next = turns.back();
            if (all[next].state == State::fresh) {
                resume(free_fiber());
            } else {
                turns.pop_back();
                resume(all[next].fiber);
            }
        }
    }
    check_shared();
}

// -- services for threads -------------------------------------------------------------------------

void wait_for_block() { yield(State::at_block); }

void wait_for_warp(unsigned int mask) {
    if (!(mask >> current % WARP & 1)) violated("a thread waits for a warp of which it is no part");
    all[current].mask = mask;
    yield(State::at_warp);
}

void exchange(unsigned int mask, void* value, size_t size, unsigned int from) {
    const size_t me = current, other = me / WARP * WARP + from;
    memcpy(all[me].value, value, size);
    wait_for_warp(mask);
    if (!(mask >> from & 1) || other >= threads || all[other].state == State::done)
        violated("lane %zu takes a value of lane %u, which hands out none", me % WARP, from);
    memcpy(value, all[other].value, size);
    wait_for_warp(mask);  // then the value may be overwritten
}

unsigned int lane() { return current % WARP; }

void* shared(const void* key, size_t size) {
    for (const Variable& of : variables)
        if (of.key == key) return &shared_memory[of.at];
    const size_t at = (shared_used + 15) / 16 * 16;
    shared_used = at + size + MARGIN;
    variables.push_back({key, at, size});
    size_t sum = 0;
    for (const Variable& of : variables) sum += of.size;
    if (sum > SHARED) violated("a block shares %zu bytes, and may share %zu", sum, SHARED);
    std::fill_n(shared_memory.begin() + at, size + MARGIN, 0xff);
    return &shared_memory[at];
}

void* dynamic_shared() {
    if (variables.empty() || variables[0].key) violated("a kernel shares memory that it was not launched with");
    return shared_memory.data();
}

const Services services = {wait_for_block, wait_for_warp, exchange, lane, shared, dynamic_shared};

}  // namespace

void launch(const Kernel& what, const Grid& grid, void** with) {
    kernel = &what, parameters = with;
    *what.self = &identity, *what.services = &services;
    identity.grid_size = grid.blocks, identity.block_size = grid.threads;
    threads = size_t(grid.threads.x) * grid.threads.y * grid.threads.z;
    shared_memory.resize(SHARED + (64 << 10));  // room for the margins
    std::vector<size_t> blocks(size_t(grid.blocks.x) * grid.blocks.y * grid.blocks.z);
    std::iota(blocks.begin(), blocks.end(), 0);
    shuffle(blocks);
    for (size_t block : blocks) {
        identity.block.x = block % grid.blocks.x;
        identity.block.y = block / grid.blocks.x % grid.blocks.y;
        identity.block.z = block / grid.blocks.x / grid.blocks.y;
        run_block(grid.dynamic_shared);
    }
}

}  // namespace emulated
