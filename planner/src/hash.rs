//! Short hashes for names and status: the same on every machine and in every version. They do not resist deliberate
//! collisions.

/// FNV-1a with 64 bits.
pub(crate) fn fnv_1a_64(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// FNV-1a with 32 bits.
pub(crate) fn fnv_1a_32(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// FNV-1 with 32 bits, as Kubernetes names revisions.
pub(crate) fn fnv_1_32(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}
