# The commands of the README, and the helpers of CONTRIBUTING. Each is a script or a Cargo command that also works alone.
.PHONY: demo check test bench build format bless clean

# Replays a recorded training program on the host device.
demo:
	@sh scripts/demo.sh

# What to run before each commit: three minutes on two cores, if the last build is there.
check:
	@sh scripts/test.sh fast

# Runs every test; the last line counts them. `scripts/test.sh` runs single stages of it.
test:
	@sh scripts/test.sh

# Measures; one table of goals and what was reached. `scripts/bench.sh --quick` takes a minute.
bench:
	@sh scripts/bench.sh

# The C library, the plugin, C++ tests and examples, in ./build.
build:
	cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release
	cmake --build build

# Formats everything that the tests check.
format:
	cargo fmt --all
	scripts/format.sh -i

# Writes include/millpond/millpond.h anew from the Rust sources, and adds new functions to cmake/millpond.map.
bless:
	MILLPOND_BLESS=1 cargo test --test sources

clean:
	rm -rf build target
