# Source this on the GPU machine, from the repository's root: unpacks what fetch_wheels.sh made into /tmp/tailsafe, once per
# machine, and puts tailsafe and what the machine lacks on PYTHONPATH. wheels/first and wheels/second may come in two calls.
home=${TAILSAFE_HOME:-/tmp/tailsafe} site=${TAILSAFE_HOME:-/tmp/tailsafe}/site
mkdir -p "$site" "$home/kernels" "$home/parts"
for archive in site kernels; do
  if [ -e "wheels/first/$archive.tar.xz" ] && [ ! -e "$home/$archive.done" ]; then
    tar --extract --xz --file "wheels/first/$archive.tar.xz" --directory "$home/$archive" && touch "$home/$archive.done"
  fi
done
for part in wheels/*/warp-library.part-*; do
  if [ -e "$part" ] && [ ! -e "$site/warp/bin/warp.so" ]; then cp "$part" "$home/parts"; fi
done
if [ -e "$home/parts/warp-library.part-last" ] && [ ! -e "$site/warp/bin/warp.so" ]; then
  mkdir -p "$site/warp/bin"
  cat "$home"/parts/warp-library.part-* | xz --decompress > "$home/warp.so" && mv "$home/warp.so" "$site/warp/bin/warp.so"
fi
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}:$site" WARP_CACHE_PATH="$home/kernels"
