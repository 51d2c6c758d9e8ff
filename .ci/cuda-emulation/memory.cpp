// Memory of the emulated GPUs, and the operations that use it.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "machine.hpp"

namespace emulated {

static thread_local Doing* doing = nullptr;

void violated(const char* format, ...) {
    char text[1024];
    int n = snprintf(text, sizeof text, "\nemulated GPU: ");
    va_list arguments;
    va_start(arguments, format);
    n += vsnprintf(text + n, sizeof text - n, format, arguments);
    va_end(arguments);
    n = std::min<int>(n, sizeof text - 100);
    n += snprintf(text + n, sizeof text - n, doing ? ", in %s\n" : "\n", doing ? doing->what : "");
    (void)!write(2, text, std::min<int>(n, sizeof text - 1));
    signal(SIGABRT, SIG_DFL);
    abort();
}

static const Address FIRST = 0x100000000000;
static const Address OF_A_GPU = 0x10000000000;  // 1 TiB of addresses
static const size_t ALIGNMENT = 256;            // as cuMemAlloc's
static const size_t KEPT = size_t(1) << 20;     // counts as free, but the driver does not give it

// An operation that used memory.
struct Use {
    size_t stream;
    uint64_t number;  // in its stream
    const char* what;
};

struct Allocation {
    size_t bytes;
    int gpu;
    char* pages;
    size_t length;            // of the pages
    bool there = false;       // its stream has allocated it
    bool given_back = false;  // the host has freed it
    int open = PROT_NONE;
    std::vector<Use> writes = {}, reads = {};  // the last write; the reads since then, one per stream
};

struct Gpu {
    Address next;
    size_t used;
};

static std::map<Address, Allocation>& allocations() {
    static auto* all = new std::map<Address, Allocation>;
    return *all;
}

static size_t page() {
    static const size_t size = sysconf(_SC_PAGESIZE);
    return size;
}

static size_t up_to(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static void open(Allocation& of, int rights) {
    if (of.open != rights && mprotect(of.pages, of.length, rights))
        violated("the host has no memory, or in too many pieces");
    of.open = rights;
}

// -- uses of memory -------------------------------------------------------------------------------

static void check_order(const std::vector<Use>& before, const Allocation& of) {
    const Clock& clock = doing->stream->clock;
    for (const Use& use : before) {
        if (use.stream < clock.size() && clock[use.stream] >= use.number) continue;
        char text[400];
        const char* says = "nothing orders %s on stream %zu and %s on stream %zu, which use the same %zu bytes";
        snprintf(text, sizeof text, says, use.what, use.stream, doing->what, doing->stream->number, of.bytes);
        if (!settings().go_on) violated("%s", text);
        fprintf(stderr, "emulated GPU: %s\n", text);
    }
}

static void use(Allocation& of, bool writes) {
    const size_t stream = doing->stream->number;
    const Use mine = {stream, doing->stream->clock[stream], doing->what};
    check_order(of.writes, of);
    if (writes) {
        check_order(of.reads, of);
        of.reads.clear();
        of.writes = {mine};
        return;
    }
    const auto is_mine = [&](const Use& use) { return use.stream == stream; };
    of.reads.erase(std::remove_if(of.reads.begin(), of.reads.end(), is_mine), of.reads.end());
    of.reads.push_back(mine);
}

// The allocation with pages that contain the address, or none.
static std::map<Address, Allocation>::iterator around(Address address) {
    auto& all = allocations();
    auto next = all.upper_bound(address);
    const auto has = [&](auto i) {
        const Address pages = Address(i->second.pages);
        return address >= pages && address < pages + i->second.length;
    };
    if (next != all.end() && has(next)) return next;
    return next != all.begin() && has(std::prev(next)) ? std::prev(next) : all.end();
}

// Opens the pages that an operation accesses: at its first fault to be read, at its second one to be written.
static void touched(Address address) {
    auto found = around(address);
    const int gpu = int((address - FIRST) / OF_A_GPU);
    if (found == allocations().end()) violated("address %#lx of GPU %d is not allocated, or was freed", address, gpu);
    auto& [first, of] = *found;
    if (!of.there) violated("%zu bytes of GPU %d are not there yet: their stream has not come to it", of.bytes, gpu);
    if (gpu != doing->stream->gpu && gpu != doing->other_gpu)
        violated("GPU %d uses %zu bytes of GPU %d", doing->stream->gpu, of.bytes, gpu);
    const bool writes = of.open == PROT_READ;
    use(of, writes);
    if (of.open == PROT_NONE) doing->opened.push_back(first);
    open(of, writes ? PROT_READ | PROT_WRITE : PROT_READ);
}

// The handlers before this one, for other faults.
static struct sigaction before_segv, before_ill;

static void on_fault(int signal, siginfo_t* info, void* context) {
    const Address address = Address(info->si_addr);
    const bool on_gpu = address >= FIRST && address < FIRST + OF_A_GPU * settings().gpus;
    if (signal == SIGILL && doing) violated("a misaligned address");
    if (signal == SIGSEGV && doing && on_gpu) return touched(address);
    if (signal == SIGSEGV && doing) violated("address %#lx is on no GPU", address);
    if (signal == SIGSEGV && on_gpu) violated("the host reads or writes address %#lx of a GPU", address);
    const auto& before = signal == SIGILL ? before_ill : before_segv;
    if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
    ::signal(signal, SIG_DFL);
}

static void catch_faults() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;  // on the current stack: Rust's signal stack is small
    sigaction(SIGSEGV, &action, &before_segv);
    sigaction(SIGILL, &action, &before_ill);
}

Doing::Doing(Stream* stream, const Operation& operation)
    : before(doing), what(operation.what), stream(stream), other_gpu(operation.other_gpu) {
    doing = this;
}

Doing::~Doing() {
    for (Address first : opened) {
        auto found = allocations().find(first);
        if (found != allocations().end()) open(found->second, PROT_NONE);
    }
    doing = before;
}

// -- allocations ----------------------------------------------------------------------------------

static std::vector<Gpu>* make_gpus() {
    auto* all = new std::vector<Gpu>;
    for (int i = 0; i < settings().gpus; ++i) {
        void* first = reinterpret_cast<void*>(FIRST + i * OF_A_GPU);
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
        if (mmap(first, OF_A_GPU, PROT_NONE, flags, -1, 0) != first) violated("no addresses for GPU %d", i);
        all->push_back({Address(first) + page(), 0});
    }
    catch_faults();
    return all;
}

static Gpu& gpu_at(int i) {
    static auto* all = make_gpus();
    return (*all)[i];
}

// Fills an allocation with bytes that are NaN as floats, and invalid indices as integers.
static void make_there(Address first) {
    Allocation& of = allocations().at(first);
    open(of, PROT_READ | PROT_WRITE);
    memset(of.pages, 0xff, of.length);
    open(of, PROT_NONE);
    of.there = true;
    if (doing) use(of, true);
}

static void check_margins(Address first, Allocation& of) {
    open(of, PROT_READ);
    const auto untouched = [](const char* from, const char* to) {
        return std::all_of(from, to, [](char c) { return c == char(0xff); });
    };
    const char* begin = reinterpret_cast<const char*>(first);
    const char* end = begin + of.bytes;
    if (!untouched(of.pages, begin)) violated("something was written before %zu bytes", of.bytes);
    if (!untouched(end, of.pages + of.length)) violated("something was written behind %zu bytes", of.bytes);
}

static void take_away(Address first) {
    auto found = allocations().find(first);
    Allocation& of = found->second;
    if (!of.there) violated("%zu bytes are freed before the stream that allocates them has come to it", of.bytes);
    if (doing) use(of, true);
    check_margins(first, of);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    mmap(of.pages, of.length, PROT_NONE, flags, -1, 0);
    gpu_at(of.gpu).used -= of.bytes;
    allocations().erase(found);
}

Address allocate(int gpu, size_t bytes, Stream* stream) {
    Gpu& on = gpu_at(gpu);
    if (bytes + KEPT > free_memory(gpu)) until_all_done(gpu);  // then pending frees are done
    if (bytes + KEPT > free_memory(gpu)) return 0;
    const size_t taken = up_to(bytes, ALIGNMENT), length = up_to(taken, page());
    const Address pages = on.next, first = pages + length - taken;
    on.next += length + page();
    if (on.next > FIRST + OF_A_GPU * (gpu + 1)) violated("GPU %d has no addresses left", gpu);
    on.used += bytes;
    allocations()[first] = {bytes, gpu, reinterpret_cast<char*>(pages), length};
    if (stream) {
        enqueue(stream, {"an allocation", [first] { make_there(first); }});
    } else {
        make_there(first);
    }
    return first;
}

bool release(Address first, Stream* stream) {
    auto found = allocations().find(first);
    if (found == allocations().end() || found->second.given_back) return false;
    found->second.given_back = true;
    if (stream) {
        enqueue(stream, {"a free", [first] { take_away(first); }});
    } else {
        until_all_done(found->second.gpu);
        take_away(first);
    }
    return true;
}

int gpu_of(Address first, size_t bytes) {
    auto next = allocations().upper_bound(first);
    if (next == allocations().begin()) return -1;
    const auto& [begin, of] = *std::prev(next);
    return !of.given_back && first + bytes <= begin + of.bytes ? of.gpu : -1;
}

size_t free_memory(int gpu) { return settings().memory - std::min(settings().memory, gpu_at(gpu).used); }

}  // namespace emulated
