//! The system's memory for a whole program, with a function of the program's own for the case that there is no more.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator for `#[global_allocator]`. Where the system has no memory left, it calls this function
/// with the bytes that were asked for. Without it, Rust ends the process by an abort.
///
/// The function must not need memory itself.
///
/// ```
/// fn end(_bytes: usize) -> ! {
///     std::process::exit(1)
/// }
///
/// #[global_allocator]
/// static MEMORY: data_parallel_functional::Allocator = data_parallel_functional::Allocator(end);
/// ```
pub struct Allocator(pub fn(usize) -> !);

impl Allocator {
    fn found(&self, memory: *mut u8, bytes: usize) -> *mut u8 {
        if memory.is_null() {
            (self.0)(bytes)
        }
        memory
    }
}

// Safety: all memory comes from the system's allocator and goes back to it, with the same layouts.
unsafe impl GlobalAlloc for Allocator {
    // Safety: the caller promises what the system's allocator asks for; so in the other functions.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Safety: as above.
        self.found(unsafe { System.alloc(layout) }, layout.size())
    }

    // Safety: as above.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // Safety: as above.
        self.found(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    // Safety: as above.
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Safety: as above.
        self.found(unsafe { System.realloc(memory, layout, size) }, size)
    }

    // Safety: as above.
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // Safety: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}
