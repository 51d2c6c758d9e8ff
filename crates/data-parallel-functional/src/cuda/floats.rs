//! Numbers in a GPU's memory: their address and their type.

/// The type of numbers in a GPU's memory. Kernels compute in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Element {
    #[default]
    F32,
    Bf16,
}

impl Element {
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => size_of::<f32>(),
            Element::Bf16 => size_of::<u16>(),
        }
    }

    /// The numbers that a thread can read or write at once.
    pub fn of_16_bytes(self) -> usize {
        16 / self.bytes()
    }

    /// The kernel of that name for such numbers.
    pub fn kernel(self, name: &'static str) -> Kernel {
        Kernel(self, name)
    }
}

/// A kernel's name, and what it calls `real`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Kernel(pub Element, pub &'static str);

/// A kernel that takes nothing but f32.
impl From<&'static str> for Kernel {
    fn from(name: &'static str) -> Self {
        Kernel(Element::F32, name)
    }
}

/// `len` floating-point numbers at an address on a GPU. It owns no memory: the code that makes one keeps the
/// memory valid until the stream has finished its last use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floats {
    pub address: u64,
    pub len: usize,
    pub element: Element,
}

impl Floats {
    /// Of f32, as all tensors are.
    pub fn new(address: u64, len: usize) -> Self {
        let element = Element::F32;
        Self {
            address,
            len,
            element,
        }
    }

    /// True if they begin at a multiple of 16 bytes, where a thread can read 16 bytes at once.
    pub fn are_aligned(self) -> bool {
        self.address.is_multiple_of(16)
    }

    /// `len` of them from `first` on.
    pub fn at(self, first: usize, len: usize) -> Self {
        assert!(first + len <= self.len, "floats beyond the end");
        let address = self.address + (first * self.element.bytes()) as u64;
        Self {
            address,
            len,
            ..self
        }
    }

    /// The kernel of that name for these.
    pub fn kernel(self, name: &'static str) -> Kernel {
        self.element.kernel(name)
    }
}
