// The header alone, and included twice; every template in it is instantiated.
#include "millpond/millpond.hpp"
// The second time must change nothing.
#include "millpond/millpond.hpp"

template class millpond::Allocator<double>;
template class millpond::detail::HostBuffer<&millpond_host_alloc, &millpond_host_free>;
template millpond::DevicePtr<int[]> millpond::make_device_array<int>(millpond::Device, std::size_t);
