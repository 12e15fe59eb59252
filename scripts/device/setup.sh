# Source this on the GPU machine, from the repository's root: unpacks wheels/ (filled by fetch_wheels.sh) and puts tailsafe and
# what the machine lacks on PYTHONPATH. The machine's own packages stay first.
site=$(mktemp -d)
for wheel in wheels/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done
if [ -e wheels/warp-rest.tar.xz ]; then
  tar --extract --xz --file wheels/warp-rest.tar.xz --directory "$site"
  cat wheels/warp-library.part-* | xz --decompress > "$site/warp/bin/warp.so"
fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}:$site"
