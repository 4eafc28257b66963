//! Parts that devices for tests share: the facet `Peers` of a device that reaches no other than itself, and the streams of
//! one whose work is done at once.

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

/// Methods of an `impl Streams` whose work is done as soon as it is queued.
#[allow(unused_macros, reason = "not every program has such a device")]
macro_rules! done_at_once {
    () => {
        fn query(&self, _: StreamId) -> Result<bool> {
            Ok(true)
        }
        fn synchronize(&self, _: StreamId) -> Result<()> {
            Ok(())
        }
        fn wait_event(&self, _: StreamId, _: EventId) -> Result<()> {
            Ok(())
        }
        fn callback(&self, _: StreamId, callback: StreamCallback) -> Result<()> {
            callback(Ok(()));
            Ok(())
        }
        fn event_create(&self) -> Result<EventId> {
            Streams::create(self)
        }
        fn event_destroy(&self, _: EventId) -> Result<()> {
            Ok(())
        }
        fn event_record(&self, _: StreamId, _: EventId) -> Result<()> {
            Ok(())
        }
        fn event_query(&self, _: EventId) -> Result<bool> {
            Ok(true)
        }
        fn event_synchronize(&self, _: EventId) -> Result<()> {
            Ok(())
        }
    };
}
