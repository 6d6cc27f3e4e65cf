#!/bin/sh
# Builds liblarder and installs it: the shared and the static library, larder.h, and files for pkg-config and CMake.
#
#   std-shim/preload/install.sh [--prefix FOLDER] [--uninstall]
#
# The folder is /usr/local unless given; $DESTDIR is put in front of it, as packages need it. Where root has no cargo:
# sudo env "PATH=$PATH" std-shim/preload/install.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
fail() {
    echo "install.sh: $1" >&2
    exit 2
}
prefix=/usr/local
uninstalls=
while [ $# -gt 0 ]; do
    case $1 in
        --prefix)
            [ $# -gt 1 ] || fail '--prefix needs a folder'
            prefix=$2
            shift
            ;;
        --prefix=*) prefix=${1#*=} ;;
        --uninstall) uninstalls=yes ;;
        --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit ;;
        *) fail "there is no option $1; --help says which there are" ;;
    esac
    shift
done
case $prefix in /*) ;; *) fail "the prefix must be an absolute path, not '$prefix'" ;; esac
to=${DESTDIR-}$prefix
cmake=$to/lib/cmake/larder

if [ "$uninstalls" ]; then
    rm -f "$to"/lib/liblarder.so* "$to/lib/liblarder.a" "$to/include/larder.h" "$to/lib/pkgconfig/larder.pc"
    rm -rf "$cmake"
    exit
fi

version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml")
soname=liblarder.so.${version%%.*}
# A folder of its own: a library that is used where cargo puts it has no soname.
target=${CARGO_TARGET_DIR:-$here/target}/install
cargo rustc --quiet --release --locked --manifest-path "$here/Cargo.toml" --target-dir "$target" -- \
    -C "link-arg=-Wl,-soname,$soname"

mkdir -p "$to/lib/pkgconfig" "$to/include" "$cmake"
install -m 755 "$target/release/liblarder.so" "$to/lib/liblarder.so.$version"
ln -sf "liblarder.so.$version" "$to/lib/$soname"
ln -sf "$soname" "$to/lib/liblarder.so"
install -m 644 "$target/release/liblarder.a" "$to/lib"
install -m 644 "$here/larder.h" "$to/include"
cat >"$to/lib/pkgconfig/larder.pc" <<PC
Name: larder
Description: Larder's process heap as malloc
Version: $version
Cflags: -I$prefix/include
Libs: -L$prefix/lib -llarder
Libs.private: -ldl -pthread
PC
cat >"$cmake/larder-config-version.cmake" <<CMAKE
set(PACKAGE_VERSION $version)
if(NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
CMAKE
cat >"$cmake/larder-config.cmake" <<CMAKE
if(NOT TARGET larder::larder)
    get_filename_component(_larder "\${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
    add_library(larder::larder SHARED IMPORTED)
    set_target_properties(larder::larder PROPERTIES IMPORTED_SONAME $soname
        IMPORTED_LOCATION "\${_larder}/lib/liblarder.so.$version" INTERFACE_INCLUDE_DIRECTORIES "\${_larder}/include")
    add_library(larder::static STATIC IMPORTED)
    set_target_properties(larder::static PROPERTIES INTERFACE_LINK_LIBRARIES "dl;pthread"
        IMPORTED_LOCATION "\${_larder}/lib/liblarder.a" INTERFACE_INCLUDE_DIRECTORIES "\${_larder}/include")
endif()
CMAKE
# The loader finds a new library in a system's folder once this has run.
[ "${DESTDIR-}" ] || [ "$(id -u)" != 0 ] || ldconfig
