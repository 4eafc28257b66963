//! The facet `Peers` of a device for tests that reaches no other than itself.

/// For a device whose own copies serve for both ends. As in some interfaces, only the source's streams make them.
macro_rules! reaches_itself {
    ($device:ty) => {
        impl Peers for $device {
            fn copy(&self, _: &dyn Device, dst: u64, src: u64, bytes: u64) -> Result<()> {
                Device::copy(self, CopyKind::DeviceToDevice, dst, src, bytes)
            }
            fn copy_async(
                &self,
                stream: StreamId,
                _: &dyn Device,
                dst: u64,
                src: u64,
                bytes: u64,
            ) -> Result<()> {
                Device::copy_async(self, stream, CopyKind::DeviceToDevice, dst, src, bytes)
            }
            fn copy_from_async(&self, _: StreamId, _: &dyn Device, _: u64, _: u64, _: u64) -> Result<()> {
                Err(Error::new(Code::Unsupported, "only the source's streams make copies between devices"))
            }
            fn can_admit(&self, peer: &dyn Device) -> Result<bool> {
                Ok(peer.ordinal() == self.ordinal())
            }
            fn admit(&self, peer: &dyn Device) -> Result<()> {
                match self.can_admit(peer)? {
                    true => Ok(()),
                    false => Err(Error::new(Code::Unsupported, "no access")),
                }
            }
            fn invite(&self, _: &dyn Device) -> Result<()> {
                Ok(())
            }
        }
    };
}
