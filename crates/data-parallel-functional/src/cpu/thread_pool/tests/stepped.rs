//! The atomic types of the pool in its tests. A test can run something on a thread before its n-th atomic operation: what
//! another thread may do at that moment.

use std::cell::RefCell;
use std::sync::atomic::{self, Ordering};

type Hook = Box<dyn FnOnce()>;

thread_local! {
    /// Number of operations that come first, and the hook that runs then.
    static NEXT: RefCell<Option<(usize, Hook)>> = const { RefCell::new(None) };
}

/// Runs `hook` on this thread before an atomic operation, after `steps` others.
pub(crate) fn before(steps: usize, hook: impl FnOnce() + 'static) {
    NEXT.set(Some((steps, Box::new(hook))));
}

/// True if the hook has run.
pub(crate) fn is_over() -> bool {
    NEXT.with_borrow(Option::is_none)
}

fn step() {
    let now = NEXT.with_borrow_mut(|next| match next {
        Some((0, _)) => next.take(),
        Some((steps, _)) => {
            *steps -= 1;
            None
        }
        None => None,
    });
    if let Some((_, hook)) = now {
        hook();
    }
}

macro_rules! stepped {
    ($name:ident, $value:ty) => {
        #[derive(Default)]
        pub(crate) struct $name(atomic::$name);

        impl $name {
            pub(crate) fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                step();
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                step();
                self.0.store(value, order);
            }
        }
    };
}

stepped!(AtomicBool, bool);
stepped!(AtomicUsize, usize);

impl AtomicBool {
    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        step();
        self.0.swap(value, order)
    }
}

impl AtomicUsize {
    pub(crate) fn fetch_add(&self, n: usize, order: Ordering) -> usize {
        step();
        self.0.fetch_add(n, order)
    }

    pub(crate) fn fetch_sub(&self, n: usize, order: Ordering) -> usize {
        step();
        self.0.fetch_sub(n, order)
    }

    /// In two steps, as other threads see it.
    pub(crate) fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        f: impl Fn(usize) -> Option<usize>,
    ) -> Result<usize, usize> {
        let mut seen = self.load(fetch);
        while let Some(new) = f(seen) {
            step();
            match self.0.compare_exchange(seen, new, set, fetch) {
                Ok(seen) => return Ok(seen),
                Err(now) => seen = now,
            }
        }
        Err(seen)
    }
}
