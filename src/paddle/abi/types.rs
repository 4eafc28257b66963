//! The numbers, handles and small structs of the interface.

use std::ffi::{c_int, c_void};

/// What every call returns. An integer with named values: foreign code may return any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct C_Status(pub u32);

impl C_Status {
    /// Done.
    pub const SUCCESS: C_Status = C_Status(0);
    /// Hosts treat it as a failure.
    pub const WARNING: C_Status = C_Status(1);
    /// The device failed: out of memory, or a failed driver or system call.
    pub const FAILED: C_Status = C_Status(2);
    /// The caller made a mistake.
    pub const ERROR: C_Status = C_Status(3);
    /// A defect of the callee.
    pub const INTERNAL_ERROR: C_Status = C_Status(4);

    /// The constant's name in C, or `"an unknown status"`.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "C_SUCCESS",
            1 => "C_WARNING",
            2 => "C_FAILED",
            3 => "C_ERROR",
            4 => "C_INTERNAL_ERROR",
            _ => "an unknown status",
        }
    }
}

/// An enumeration that is passed between C and Rust as its number.
macro_rules! numbers {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $value:ident = $number:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(transparent)]
        pub struct $name(pub u32);
        impl $name {
            $(#[doc = concat!("Number ", stringify!($number), ".")] pub const $value: $name = $name($number);)*
        }
    };
}

numbers! {
    /// The type of a tensor's elements.
    C_DataType {
        UNDEFINED = 0, BOOL = 1, UINT8 = 2, UINT16 = 3, UINT32 = 4, UINT64 = 5, INT8 = 6, INT16 = 7,
        INT32 = 8, INT64 = 9, FLOAT16 = 10, FLOAT32 = 11, FLOAT64 = 12, BFLOAT16 = 13, COMPLEX64 = 14,
        COMPLEX128 = 15,
    }
}
numbers! {
    /// The order of a tensor's axes. `STRIDED` came with 3.0.
    C_DataLayout { ANY = 0, NHWC = 1, NCHW = 2, NCDHW = 3, NDHWC = 4, STRIDED = 5 }
}
numbers! {
    /// What a collective does with the elements.
    C_CCLReduceOp { SUM = 0, AVG = 1, MAX = 2, MIN = 3, PRODUCT = 4 }
}
numbers! {
    /// Which calls a stream capture forbids.
    C_StreamCaptureMode { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 }
}
numbers! {
    /// The state of a stream's capture.
    C_StreamCaptureStatus { NONE = 0, ACTIVE = 1, INVALIDATED = 2 }
}

/// A device, as calls identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct C_Device_st {
    /// The ordinal, `0..count`.
    pub id: c_int,
}
/// Points to a device struct of the caller, valid for the duration of the call.
pub type C_Device = *mut C_Device_st;

/// A pointer to an opaque object.
macro_rules! handle {
    ($($(#[$doc:meta])* $name:ident = $target:ident;)*) => {$(
        #[doc = concat!("What a [`", stringify!($name), "`] points to; its maker's own.")]
        #[repr(C)]
        pub struct $target {
            _private: [u8; 0],
        }
        $(#[$doc])*
        pub type $name = *mut $target;
    )*};
}

handle! {
    /// A stream; null is the default stream.
    C_Stream = C_Stream_st;
    /// An event.
    C_Event = C_Event_st;
    /// A C++ object of PaddlePaddle's.
    C_Allocator = C_Allocator_st;
    /// A C++ object of PaddlePaddle's.
    C_Place = C_Place_st;
    /// A C++ object of Eigen's.
    C_EigenDevice = C_EigenDevice_st;
    /// A BLAS handle.
    C_BLASHandle = C_BLASHandle_st;
    /// A handle of the light BLAS library.
    C_BLASLtHandle = C_BLASLtHandle_st;
    /// A graph, ready to launch.
    C_GraphExec = C_GraphExec_st;
    /// A captured graph.
    C_CudaGraph = C_CudaGraph_t_st;
    /// A node of a graph.
    C_CudaGraphNode = C_CudaGraphNode_st;
    /// A collective communicator.
    C_CCLComm = C_CCLComm_st;
    /// A profiler.
    C_Profiler = C_Profiler_st;
}

/// Called when a stream reaches it; `status` is the outcome of the work before it.
pub type C_Callback = Option<
    unsafe extern "C-unwind" fn(
        device: C_Device,
        stream: C_Stream,
        user_data: *mut c_void,
        status: *mut C_Status,
    ),
>;
/// Sets the parameters of an instantiated graph.
pub type C_GraphExecuterSetter =
    Option<unsafe extern "C-unwind" fn(exec: C_GraphExec, user_data: *mut c_void)>;
/// Called with an instantiated graph.
pub type C_GraphExecHook = Option<unsafe extern "C-unwind" fn(exec: C_GraphExec)>;

/// The hooks of a captured graph.
#[repr(C)]
pub struct C_GraphHookManager {
    /// Entries in both arrays.
    pub size: usize,
    /// The hooks.
    pub hooks: *mut C_GraphExecuterSetter,
    /// The argument for each hook.
    pub user_data: *mut *mut c_void,
}

/// The id of a collective group.
#[repr(C)]
pub struct C_CCLRootId {
    /// Bytes at `data`.
    pub sz: usize,
    /// The id itself.
    pub data: *mut c_void,
}

/// The version of the interface that a plugin was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CustomRuntimeVersion {
    /// 0 in every release so far.
    pub major: usize,
    /// 1 in every release so far.
    pub minor: usize,
    /// 1 in every release so far.
    pub patch: usize,
}

impl CustomRuntimeVersion {
    /// The version that every known release has.
    pub const CURRENT: CustomRuntimeVersion = CustomRuntimeVersion { major: 0, minor: 1, patch: 1 };

    /// The number that hosts compare: `major * 10000 + minor * 100 + patch`, without overflow.
    pub fn number(self) -> u64 {
        let part = |value: usize, factor: u64| (value as u64).saturating_mul(factor);
        part(self.major, 10_000).saturating_add(part(self.minor, 100)).saturating_add(self.patch as u64)
    }
}
