//! Physical memory: blocks that no address shows yet. A device's memory is a sparse file in memory, mapped whole once,
//! so that the driver reaches every byte without the addresses that it hands out; a block that may be exported has a
//! file of its own.
//!
//! Only what is touched costs memory. A freed block's pages become zeros and stay for the next block, as long as the file
//! has few of them: a page that comes anew is a page fault, which costs many times what clearing it does. Capacity is
//! counted here and nowhere else, for every way to allocate.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::code::*;
use crate::world::{Answer, World};

pub(crate) const PAGE: u64 = 4096;

const JUNK: u8 = 0xa5;

/// What the files of all fake drivers are called, with the device after it.
pub(crate) const FILE_NAME: &str = "fakecuda-device-";

/// A sparse file that holds many blocks.
pub(crate) struct Arena {
    pub(crate) fd: i32,
    pub(crate) base: usize,
    pub(crate) size: u64,
    free: BTreeMap<u64, u64>, // offset to length; all zeros
    shared: AtomicBool,       // another process may have mapped it
}

/// [B] that a file may have in pages for its free parts to keep theirs, and that all files may have that nobody uses.
const KEPT: u64 = 256 << 20;
/// So many files at most that nobody uses, and none that takes more addresses than this [B].
const KEPT_FILES: usize = 64;
const KEPT_SIZE: u64 = 16 << 30;

/// Some memory of a device. It lives while a handle or a mapping holds it.
pub(crate) struct Block {
    pub(crate) device: i32,
    pub(crate) size: u64,
    pub(crate) fd: i32,
    pub(crate) offset: u64,         // in the file
    pub(crate) base: usize,         // where the driver sees it
    pub(crate) file: Option<Arena>, // its own
    pub(crate) handle_types: u32,   // that it may be exported as
    pub(crate) charged: bool,       // counted against the capacity; an import is not
    pub(crate) holders: u32,        // handles and mappings
}

pub(crate) fn round_up(value: u64, to: u64) -> Option<u64> {
    value.checked_add(to - 1).map(|sum| sum / to * to)
}

/// The name says to other processes whose memory it is: the device's number in the machine.
fn memory_file(size: u64, device: i32) -> Option<i32> {
    let name = std::ffi::CString::new(format!("{FILE_NAME}{device}")).ok()?;
    // SAFETY: a string; the descriptor is new.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: `fd` is ours.
    if unsafe { libc::ftruncate(fd, size as libc::off_t) } != 0 {
        // SAFETY: `fd` is ours.
        unsafe { libc::close(fd) };
        return None;
    }
    Some(fd)
}

fn map_file(fd: i32, size: u64) -> Option<usize> {
    // SAFETY: a new shared mapping at an address that the kernel chooses.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            fd,
            0,
        )
    };
    (base != libc::MAP_FAILED).then_some(base as usize)
}

impl Arena {
    fn new(size: u64, device: i32) -> Option<Arena> {
        let fd = memory_file(size, device)?;
        let Some(base) = map_file(fd, size) else {
            // SAFETY: `fd` is ours.
            unsafe { libc::close(fd) };
            return None;
        };
        Some(Arena { fd, base, size, free: BTreeMap::from([(0, size)]), shared: AtomicBool::new(false) })
    }

    fn take(&mut self, size: u64) -> Option<u64> {
        let (&offset, &length) = self.free.iter().find(|(_, length)| **length >= size)?;
        self.free.remove(&offset);
        if length > size {
            self.free.insert(offset + size, length - size);
        }
        Some(offset)
    }

    /// The file's pages [B].
    fn pages(&self) -> u64 {
        // SAFETY: plain data, which fstat fills.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is the arena's; `about` can be written.
        if unsafe { libc::fstat(self.fd, &mut about) } != 0 {
            return u64::MAX;
        }
        about.st_blocks as u64 * 512
    }

    /// Makes a part zeros again, which nobody uses any more; false where the system refuses that.
    fn clear(&self, offset: u64, size: u64) -> bool {
        if self.pages() > KEPT {
            return self.give_pages_back(offset, size);
        }
        // Only what has a page: the rest is zeros already, and may be very large.
        let (end, mut at) = (offset + size, offset);
        while at < end {
            let from = match self.seek(at, libc::SEEK_DATA) {
                Ok(from) if from < end => from,
                Ok(_) | Err(libc::ENXIO) => break, // no pages are behind it
                Err(_) => return self.give_pages_back(at, end - at),
            };
            let to = self.seek(from, libc::SEEK_HOLE).unwrap_or(end).min(end);
            // SAFETY: the arena is mapped whole, and the part belongs to nobody.
            unsafe { std::ptr::write_bytes((self.base + from as usize) as *mut u8, 0, (to - from) as usize) };
            at = to;
        }
        true
    }

    fn seek(&self, from: u64, whence: i32) -> Result<u64, i32> {
        // SAFETY: the descriptor is the arena's, and nothing depends on its position.
        let at = unsafe { libc::lseek(self.fd, from as libc::off_t, whence) };
        u64::try_from(at).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    fn give_pages_back(&self, offset: u64, size: u64) -> bool {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the file is the arena's and the part belongs to nobody. Without success the pages just stay.
        unsafe { libc::fallocate(self.fd, mode, offset as libc::off_t, size as libc::off_t) == 0 }
    }

    fn give(&mut self, mut offset: u64, mut size: u64) {
        _ = self.clear(offset, size);
        if let Some((&before, &length)) = self.free.range(..offset).next_back()
            && before + length == offset
        {
            self.free.remove(&before);
            offset = before;
            size += length;
        }
        if let Some(length) = self.free.remove(&(offset + size)) {
            size += length;
        }
        self.free.insert(offset, size);
    }

    /// Another process may map it from here on.
    pub(crate) fn share(&self) {
        self.shared.store(true, Ordering::Relaxed); // under the one lock
    }

    /// Makes it as it was when it was new. False: it cannot serve again.
    fn renew(&mut self) -> bool {
        if self.shared.load(Ordering::Relaxed) || self.size > KEPT_SIZE || self.pages() > KEPT {
            return false;
        }
        let mut used = 0; // from here to the next free part
        for (&offset, &length) in &self.free {
            if offset > used && !self.clear(used, offset - used) {
                return false;
            }
            used = offset + length;
        }
        if self.size > used && !self.clear(used, self.size - used) {
            return false;
        }
        self.free = BTreeMap::from([(0, self.size)]);
        true
    }

    fn close(self) {
        // SAFETY: mapped by `new` or `import`, and nobody uses it any more.
        unsafe { libc::munmap(self.base as *mut _, self.size as usize) };
        // SAFETY: opened by `new`, or by who imported it; the file's own.
        unsafe { libc::close(self.fd) };
    }
}

/// A file that nobody uses.
struct Unused {
    index: i32, // of the device that it is named after
    pages: u64, // [B]
    file: Arena,
}

/// Files that nobody uses, the oldest first: they serve again, whole, where one of their size is wanted.
#[derive(Default)]
pub(crate) struct Spare(Vec<Unused>);

impl Spare {
    /// Nobody uses it any more. In a child of fork the parent's memory lies in it.
    pub(crate) fn put(&mut self, index: i32, mut file: Arena) {
        if crate::world::forked() || !file.renew() {
            return file.close();
        }
        self.0.push(Unused { index, pages: file.pages(), file });
        while self.0.len() > KEPT_FILES || self.0.iter().map(|unused| unused.pages).sum::<u64>() > KEPT {
            self.0.remove(0).file.close();
        }
    }

    /// An old file or a new one, all zeros.
    fn take(&mut self, index: i32, size: u64) -> Option<Arena> {
        match self.0.iter().rposition(|unused| unused.index == index && unused.file.size == size) {
            Some(at) => Some(self.0.remove(at).file),
            None => Arena::new(size, index).or_else(|| {
                // They may have the last addresses and descriptors.
                self.0.drain(..).for_each(|unused| unused.file.close());
                Arena::new(size, index)
            }),
        }
    }
}

/// Makes a block with one holder, which may be exported as one of these handles.
pub(crate) fn create(world: &mut World, device: i32, size: u64, handle_types: u32) -> Result<u64, u32> {
    let size = round_up(size, PAGE).ok_or(OUT_OF_MEMORY)?;
    let owner = world.device(device)?;
    if size > owner.left() {
        // Unused memory of pools serves other allocations of the process before one fails.
        crate::pool::give_up_unused(world, device);
    }
    let (owner, spare) = world.device_and_spare(device)?;
    if size > owner.left() {
        return Err(OUT_OF_MEMORY);
    }
    let index = owner.index;
    let (fd, base, offset, file) = if handle_types != 0 {
        let mut file = spare.take(index, size).ok_or(OUT_OF_MEMORY)?;
        file.free.clear();
        (file.fd, file.base, 0, Some(file))
    } else {
        let (index, offset) = take_from_arenas(owner, spare, size).ok_or(OUT_OF_MEMORY)?;
        let arena = &owner.arenas[index];
        (arena.fd, arena.base + offset as usize, offset, None)
    };
    let block = Block { device, size, fd, offset, base, file, handle_types, charged: true, holders: 1 };
    // What is left in memory from before is anything but zeros.
    // SAFETY: the block is new and at least a page.
    unsafe { std::ptr::write_bytes(block.base as *mut u8, JUNK, PAGE as usize) };
    owner.take(size);
    let id = world.new_handle();
    world.blocks.insert(id, block);
    Ok(id)
}

fn take_from_arenas(owner: &mut crate::device::Device, spare: &mut Spare, size: u64) -> Option<(usize, u64)> {
    for (index, arena) in owner.arenas.iter_mut().enumerate() {
        if let Some(offset) = arena.take(size) {
            return Some((index, offset));
        }
    }
    // Either the first one, or the file is cut into pieces, which a GPU's pages never are: one more file.
    let length = if owner.arenas.is_empty() { owner.capacity } else { (owner.capacity / 4).max(size) };
    let length = round_up(length.max(size), PAGE)?;
    owner.arenas.push(spare.take(owner.index, length)?);
    let index = owner.arenas.len() - 1;
    owner.arenas[index].take(size).map(|offset| (index, offset))
}

/// Makes a block of a file that another process (or this one) has exported; the file is owned from here on.
/// `device` is -1 for one that this process does not see.
pub(crate) fn import(
    world: &mut World,
    device: i32,
    fd: i32,
    offset: u64,
    size: u64,
    handle_types: u32,
) -> Result<u64, u32> {
    // SAFETY: a new shared mapping of the file.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            fd,
            offset as libc::off_t,
        )
    };
    if base == libc::MAP_FAILED {
        // SAFETY: given to us.
        unsafe { libc::close(fd) };
        return Err(MAP_FAILED);
    }
    let id = world.new_handle();
    let base = base as usize;
    let file = Some(Arena { fd, base, size, free: BTreeMap::new(), shared: AtomicBool::new(true) });
    let block = Block { device, size, fd, offset, base, file, handle_types, charged: false, holders: 1 };
    world.blocks.insert(id, block);
    Ok(id)
}

pub(crate) fn hold(world: &mut World, id: u64) -> Answer {
    world.blocks.get_mut(&id).ok_or(INVALID_VALUE)?.holders += 1;
    OK
}

/// One holder less; the last one frees the memory.
pub(crate) fn release(world: &mut World, id: u64) {
    let Some(block) = world.blocks.get_mut(&id) else { return };
    block.holders -= 1;
    if block.holders > 0 {
        return;
    }
    let Some(block) = world.blocks.remove(&id) else { return };
    let own_file = block.file.is_some();
    if let Some(file) = block.file {
        // No mapping holds it any more.
        let index = world.device(block.device).map_or(-1, |owner| owner.index);
        world.spare.put(index, file);
    }
    if let Ok(owner) = world.device_mut(block.device) {
        if block.charged {
            owner.give(block.size);
        }
        if !own_file && let Some(arena) = owner.arenas.iter_mut().find(|arena| arena.fd == block.fd) {
            arena.give(block.offset, block.size);
        }
    }
}
